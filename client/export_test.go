package client

import (
	"github.com/morainefs/moraine/client/internal/stripeio"
	"github.com/morainefs/moraine/internal/limit"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// MinMemory is the smallest Config.MemoryBytes.
const MinMemory = minMemory

// Held is MemoryInUse.
func Held(c *Client) int64 { return c.MemoryInUse() }

// HoldWrites takes all memory for writes until release.
func HoldWrites(c *Client) (release func()) { return holdAll(c.io.Writes.Sem) }

// HoldReads takes all memory for reads until release.
func HoldReads(c *Client) (release func()) { return holdAll(c.io.Reads) }

// HoldHelpers takes all memory for early parity and for verification until release.
func HoldHelpers(c *Client) (release func()) { return holdAll(c.io.Helpers) }

// HelpersSize is the size of that memory.
func HelpersSize(c *Client) int64 { return c.io.Helpers.Size() }

// ReadaheadHits is the counter of a client's metrics.
func ReadaheadHits(m *Metrics) prometheus.Counter { return m.counts.ReadaheadHits }

// MessageOf returns the message in attributes.
func MessageOf(a Attr) *wire.Attr { return a.w }

// The client verifies one of so many rebuilt parts, and tries again after so many if it could
// not.
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

// BandwidthSeconds is how long reads or writes waited for the limit of the bandwidth, in all.
func BandwidthSeconds(m *Metrics, direction string) float64 {
	var d dto.Metric
	_ = m.counts.BandwidthSeconds.WithLabelValues(direction).Write(&d)
	return d.GetCounter().GetValue()
}
