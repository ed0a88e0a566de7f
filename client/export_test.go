package client

// Held returns how many bytes of buffers the client has lent out.
func Held(c *Client) int64 { return c.pool.Stats().InUseBytes }
