package client

// MinMemory is the smallest Config.MemoryBytes.
const MinMemory = minMemory

// Held returns how many bytes of buffers the client has lent out.
func Held(c *Client) int64 { return c.pool.Stats().InUseBytes }
