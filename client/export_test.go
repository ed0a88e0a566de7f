package client

import (
	"github.com/morainefs/moraine/client/internal/stripeio"
	"github.com/morainefs/moraine/internal/limit"
)

// MinMemory is the smallest Config.MemoryBytes.
const MinMemory = minMemory

// Held is MemoryInUse.
func Held(c *Client) int64 { return c.MemoryInUse() }

// HoldWrites takes all memory of writes until release.
func HoldWrites(c *Client) (release func()) { return holdAll(c.io.Writes.Sem) }

// HoldReads takes all memory of reads until release.
func HoldReads(c *Client) (release func()) { return holdAll(c.io.Reads) }

// HoldHelpers takes all memory of early parity and of verifications until release.
func HoldHelpers(c *Client) (release func()) { return holdAll(c.io.Helpers) }

// HelpersSize is how much that memory is.
func HelpersSize(c *Client) int64 { return c.io.Helpers.Size() }

// In how many rebuilt parts one is verified, and after how many one that could not be is
// tried again.
const (
	WholeSample = stripeio.WholeSample
	WholeRetry  = stripeio.WholeRetry
)

func holdAll(s *limit.Semaphore) func() {
	if !s.TryAcquire(s.Size()) {
		panic("the memory is in use")
	}
	return func() { s.Release(s.Size()) }
}
