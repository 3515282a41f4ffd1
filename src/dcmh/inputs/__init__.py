"""From one raw item to arrays that a method can learn from."""
