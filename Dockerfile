# The service, from the wheel of this checkout. hadolint passes; the image has never been built.
#   docker build -t dcmh .
#   docker run --rm -v ./photos:/photos:ro -v index:/data dcmh index /photos --out /data/photos.dcmh
#   docker run --rm -p 127.0.0.1:8000:8000 -v ./photos:/photos:ro -v index:/data dcmh
FROM python:3.13-slim AS build
WORKDIR /checkout
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.13-slim
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# torch first, from the index of CPU builds: those on PyPI bring CUDA, several GB.
RUN --mount=type=bind,source=constraints.txt,target=/constraints.txt \
    --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu "$(grep '^torch==' /constraints.txt)" \
    && pip install --no-cache-dir -c /constraints.txt "$(echo /wheels/dcmh-*.whl)[serve,postgres,milvus]" \
    && useradd --create-home --uid 1000 dcmh \
    && install -d -o dcmh /data /cache
USER 1000
ENV DCMH_HOME=/cache PYTHONUNBUFFERED=1
VOLUME ["/data", "/cache"]
EXPOSE 8000
HEALTHCHECK --start-period=60s CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/api/health', timeout=5)"]
ENTRYPOINT ["dcmh"]
CMD ["serve", "/data/photos.dcmh", "--host", "0.0.0.0"]
