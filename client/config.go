package client

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/transport"
)

// Config is what an operator may set. The zero value of each field but Metadata means its
// default.
type Config struct {
	// Metadata holds the metadata servers, each as the addresses of one server.
	Metadata [][]string
	// Scope is the directory to which the client is confined. It is an absolute path from the
	// root of the cluster, within the certificate's scope. All paths start there, and no symbolic
	// link leads out of it. It must exist. Default: the certificate's scope.
	Scope string
	// MemoryBytes bounds the file bytes, parity and read buffers in the client's memory at once,
	// over all files. Default 256 MiB.
	MemoryBytes int64
	// StripesInFlight bounds the stripes of one file that the client sends at once. Default 4.
	StripesInFlight int
	// Scheme is used for new files instead of the service's choice, unless K is 0.
	Scheme moraine.Scheme
	// ChunkBytes is the length of the data chunks of a full stripe, a multiple
	// of moraine.BlockSize. Default moraine.DefaultChunkSize.
	ChunkBytes int64
	// Level is the level that Commit waits for: moraine.NVMe (the default) or Memory.
	Level moraine.Level

	// AttemptTimeout bounds one attempt of a request to a metadata server.
	// Default 5 s.
	AttemptTimeout time.Duration
	// Patience bounds all attempts of a request, or of a read or write of a stripe, unless the
	// caller's context ends earlier. Default 2 min.
	Patience time.Duration
	// PutTimeout bounds one attempt to put a chunk. Default 20 s.
	PutTimeout time.Duration
	// GetTimeout bounds one attempt to get a chunk. Default 10 s.
	GetTimeout time.Duration
	// SlowFloor is the minimum time that a write waits for a chunk after most
	// chunks of its stripe have arrived. Then it counts the device as slow.
	// Default 1 s.
	SlowFloor time.Duration
	// HedgeFloor is the minimum time that a read waits for a chunk before it also requests the
	// stripe's other chunks. Default 50 ms.
	HedgeFloor time.Duration
	// ReadaheadBytes bounds the bytes that one sequential reader fetches ahead. Default 64 MiB;
	// negative: nothing.
	ReadaheadBytes int64
	// ReadBytesPerSecond bounds the bytes of chunks and objects that the client reads from
	// chunkservers, and WriteBytesPerSecond those that it writes to them, parity included. Reads and
	// writes wait. What is fetched ahead counts, and what a cache has does not. Default 0: no bound.
	// Three times MemoryBytes must move within the Patience, and 1 MiB a second.
	ReadBytesPerSecond, WriteBytesPerSecond int64
	// InlineBytes is the largest content of a file that the client commits to the metadata itself,
	// without a stripe. Default and most 16 KiB; negative: none.
	InlineBytes int64
	// CacheEntries bounds the names and attributes that the client caches under leases, to answer
	// without a request. Default 100,000; negative: none.
	CacheEntries int
	// Delegation lets the service delegate directories to the client while nobody else works there:
	// the client then makes and removes entries, and small files, by itself, and sends them a few
	// milliseconds later. It needs the cache. Default: false, also for CacheEntries below 0.
	Delegation bool
	// CacheDir is a directory of its own on a local disk, in which the client keeps the file bytes
	// that it reads. The clients of one node may share it. Their users can read what is in it, so
	// no other user of the node may have rights on it. Default: none.
	CacheDir string
	// CacheBytes bounds the space that the files in CacheDir take, 64 MiB at least. All clients
	// that share CacheDir name the same bound.
	CacheBytes int64
	// Resume has the client take over the session of a process that has ended. Default: none.
	Resume *Resume
}

// Deps are what tests replace. Only Dialer is required.
type Deps struct {
	Dialer  transport.Dialer
	Clock   moraine.Clock
	Log     *slog.Logger
	Metrics *Metrics
	// Random makes session nonces and jitter. Default crypto/rand.
	Random io.Reader
}

func (c *Config) setDefaults() {
	c.MemoryBytes = cmp.Or(c.MemoryBytes, 256<<20)
	c.StripesInFlight = cmp.Or(c.StripesInFlight, 4)
	c.ChunkBytes = cmp.Or(c.ChunkBytes, moraine.DefaultChunkSize)
	c.Level = cmp.Or(c.Level, moraine.NVMe)
	c.AttemptTimeout = cmp.Or(c.AttemptTimeout, 5*time.Second)
	c.Patience = cmp.Or(c.Patience, 2*time.Minute)
	c.PutTimeout = cmp.Or(c.PutTimeout, 20*time.Second)
	c.GetTimeout = cmp.Or(c.GetTimeout, 10*time.Second)
	c.SlowFloor = cmp.Or(c.SlowFloor, time.Second)
	c.HedgeFloor = cmp.Or(c.HedgeFloor, 50*time.Millisecond)
	c.ReadaheadBytes = cmp.Or(c.ReadaheadBytes, 64<<20)
	c.InlineBytes = min(cmp.Or(c.InlineBytes, moraine.MaxInline), moraine.MaxInline)
	c.CacheEntries = cmp.Or(c.CacheEntries, 100_000)
}

func (c *Config) validate() error {
	bad := func(format string, args ...any) error {
		return &moraine.Error{Op: "client.Dial", Kind: moraine.InvalidArgument, Err: fmt.Errorf(format, args...)}
	}
	switch {
	case len(c.Metadata) == 0:
		return bad("name at least one metadata server")
	case c.Scheme.K != 0 && !c.Scheme.Valid():
		return bad("scheme %d+%d is invalid", c.Scheme.K, c.Scheme.M)
	case c.ChunkBytes < moraine.BlockSize || c.ChunkBytes > moraine.MaxChunkSize || c.ChunkBytes%moraine.BlockSize != 0:
		return bad("the chunk size is %d bytes, but must be %d to %d in steps of %d", c.ChunkBytes, moraine.BlockSize,
			moraine.MaxChunkSize, moraine.BlockSize)
	case c.Level != moraine.NVMe && c.Level != moraine.Memory:
		return bad("the level is %s, but a commit waits for nvme or memory", c.Level)
	case c.StripesInFlight < 1:
		return bad("%d stripes in flight are too few: at least 1", c.StripesInFlight)
	case c.tooSlow(c.ReadBytesPerSecond) || c.tooSlow(c.WriteBytesPerSecond):
		return bad("a bandwidth of %d bytes a second is too low: the client moves its %d bytes of memory, with redundancy, within %v, so at least %d",
			cmp.Or(min(c.ReadBytesPerSecond, c.WriteBytesPerSecond), max(c.ReadBytesPerSecond, c.WriteBytesPerSecond)), c.MemoryBytes, c.Patience, c.leastBandwidth())
	case c.MemoryBytes < minMemory:
		return bad("%d bytes of memory are too few: at least %d", c.MemoryBytes, minMemory)
	}
	for _, s := range c.Metadata {
		if len(s) == 0 {
			return bad("a metadata server without an address")
		}
	}
	return nil
}

// leastBandwidth is the least bound of the bandwidth: whatever waits for it is in the client's
// memory, and no wait exceeds the patience. A put sends up to three times as much: copies, or parity.
// A stripe takes its bytes in steps of a tenth of the bound, so it may not be tiny.
func (c *Config) leastBandwidth() int64 {
	return max(1<<20, int64(3*float64(c.MemoryBytes)/c.Patience.Seconds()))
}

func (c *Config) tooSlow(bytesPerSecond int64) bool {
	return bytesPerSecond != 0 && bytesPerSecond < c.leastBandwidth()
}

// minMemory is enough to write stripes of any scheme, one at a time: the widest has
// moraine.MaxChunks chunks of the default size.
const minMemory = 16 << 20

func (d *Deps) setDefaults() {
	d.Clock = cmp.Or[clock.Clock](d.Clock, clock.System{})
	d.Log = cmp.Or(d.Log, slog.New(slog.DiscardHandler))
	if d.Metrics == nil {
		d.Metrics = NewMetrics(nil)
	}
	d.Random = cmp.Or[io.Reader](d.Random, rand.Reader)
}
