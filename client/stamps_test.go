package client_test

import (
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/transport/wire"
)

// stampBlock is the size of each write of stamps, in bytes.
const stampBlock = 12 << 10

// stamps is a file in which each word names the write that wrote it.
type stamps struct {
	begun, ended []atomic.Uint32 // for each block: the newest write that began, and that returned
}

func newStamps(blocks int) *stamps {
	return &stamps{begun: make([]atomic.Uint32, blocks), ended: make([]atomic.Uint32, blocks)}
}

// write writes a block with its next number.
func (s *stamps) write(t *testing.T, c *cluster, h *client.Handle, b int) {
	n := s.begun[b].Add(1)
	p := make([]byte, stampBlock)
	for i := 0; i < len(p); i += 4 {
		binary.LittleEndian.PutUint32(p[i:], n)
	}
	writeAt(t, c, h, p, int64(b)*stampBlock)
	s.ended[b].Store(n)
}

// read reads some blocks, and compares each word with the writes that returned before the read,
// and those that began before its end.
func (s *stamps) read(t *testing.T, c *cluster, h *client.Handle, b, n int) {
	n = min(n, len(s.begun)-b)
	least := make([]uint32, n)
	for i := range least {
		least[i] = s.ended[b+i].Load()
	}
	p := make([]byte, n*stampBlock)
	got, err := h.ReadAt(c.ctx, p, int64(b)*stampBlock)
	if errors.Is(err, moraine.Timeout) {
		return // because of the faults of hosts and network
	}
	if !errors.Is(err, io.EOF) {
		require.NoError(t, err)
	}
	for i := range n {
		most := s.begun[b+i].Load()
		for at := i * stampBlock; at < (i+1)*stampBlock; at += 4 {
			v := binary.LittleEndian.Uint32(p[at:])
			if at >= got {
				v = 0
			}
			if v < least[i] || v > most {
				require.FailNow(t, "stale or wrong", "word %d of block %d is of write %d; %d had returned before, and %d had begun after", at/4, b+i, v, least[i], most)
			}
		}
	}
}

// refuseSome refuses some commits, each whole and never twice in a row, as the service does
// after devices went out. It also loses the replies of others.
func refuseSome(c *cluster, rng *rand.Rand) {
	type number struct{ session, number uint64 }
	var mu sync.Mutex
	met := map[number]bool{} // whether it was refused
	last := map[uint64]bool{}
	c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
		if len(req.GetCommit().GetStripes()) == 0 {
			return nil, nil
		}
		mu.Lock()
		defer mu.Unlock()
		n := number{req.Session, req.Number}
		refused, known := met[n]
		if !known {
			refused = !last[n.session] && rng.IntN(4) == 0
			last[n.session], met[n] = refused, refused
		}
		if refused {
			return nil, errKind(moraine.Stale)
		}
		if rng.IntN(6) > 0 {
			return nil, nil
		}
		return func(*wire.MetaResponse, error) (*wire.MetaResponse, error) { return nil, errKind(moraine.Unavailable) }, nil
	})
}

// TestReadersBesideOneWriter: a handle writes all over a file while another one of the client
// reads. Each read sees what was written before it began. Meanwhile the service refuses
// commits, so that the client resubmits stripes, another client changes other blocks, messages
// are lost, leaders change, and memory is short.
func TestReadersBesideOneWriter(t *testing.T) {
	seed, steps := testseed.First(t), testseed.Of(40, 3000)
	inCluster(t, 7, func(c *cluster) {
		cfg := config()
		cfg.MemoryBytes = 16 << 20
		cl, other := c.dial("c1", cfg), c.dial("c2", config())
		defer cl.Close()
		defer other.Close()
		h := openNew(t, c, cl, "f")
		second, err := cl.Inodes().OpenHandle(c.ctx, h.Inode(), client.HandleOptions{})
		require.NoError(t, err)
		foreign, err := other.Inodes().OpenHandle(c.ctx, h.Inode(), client.HandleOptions{})
		require.NoError(t, err)
		refuseSome(c, rand.New(rand.NewPCG(seed, 8)))
		const blocks = 120 // the first half is c1's
		s := newStamps(blocks)
		var work sync.WaitGroup
		stop := make(chan struct{})
		for n := range 3 {
			work.Go(func() {
				rng := rand.New(rand.NewPCG(seed, uint64(n)+2))
				for {
					select {
					case <-stop:
						return
					default:
					}
					s.read(t, c, second, rng.IntN(blocks/2-8), 1+rng.IntN(8))
					time.Sleep(time.Duration(rng.IntN(20)) * time.Millisecond)
				}
			})
		}
		work.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 9))
			for {
				select {
				case <-stop:
					return
				default:
				}
				s.write(t, c, foreign, blocks/2+rng.IntN(blocks/2))
				if rng.IntN(4) == 0 {
					require.NoError(t, foreign.Flush(c.ctx))
				}
				time.Sleep(time.Duration(rng.IntN(200)) * time.Millisecond)
			}
		})
		rng := rand.New(rand.NewPCG(seed, 1))
		// Few steps may be lucky: go on until a put was refused.
		for i := 0; i < steps || cl.Stats().StripesResubmitted == 0 && i < 20*steps; i++ {
			disturb(c, rng, i)
			b := rng.IntN(blocks / 2)
			for range 1 + rng.IntN(10) {
				s.write(t, c, h, b)
				if b = (b + 1) % (blocks / 2); rng.IntN(3) == 0 {
					b = rng.IntN(blocks / 2)
				}
			}
			switch rng.IntN(8) {
			case 0:
				require.NoError(t, h.Flush(c.ctx))
			case 1:
				require.NoError(t, second.Sync(c.ctx))
			case 2:
				require.NoError(t, h.Refresh(c.ctx))
			case 3:
				time.Sleep(time.Duration(rng.IntN(3000)) * time.Millisecond)
			}
		}
		close(stop)
		work.Wait()
		c.Net.Heal()
		for _, host := range c.Hosts {
			host.Before(nil)
		}
		for _, h := range []*client.Handle{h, second, foreign} {
			require.NoError(t, h.Close(c.ctx))
		}
		last, err := other.Inodes().OpenHandle(c.ctx, h.Inode(), client.HandleOptions{})
		require.NoError(t, err)
		for b := range blocks {
			s.read(t, c, last, b, 1)
		}
		require.NoError(t, last.Close(c.ctx))
		require.NotZero(t, cl.Stats().StripesResubmitted)
	})
}
