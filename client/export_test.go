package client

import "github.com/morainefs/moraine/internal/limit"

// MinMemory is the smallest Config.MemoryBytes.
const MinMemory = minMemory

// Held is MemoryInUse.
func Held(c *Client) int64 { return c.MemoryInUse() }

// HoldWrites takes all memory of writes until release.
func HoldWrites(c *Client) (release func()) { return holdAll(c.writes.sem) }

// HoldReads takes all memory of reads until release.
func HoldReads(c *Client) (release func()) { return holdAll(c.reads) }

func holdAll(s *limit.Semaphore) func() {
	if !s.TryAcquire(s.Size()) {
		panic("the memory is in use")
	}
	return func() { s.Release(s.Size()) }
}
