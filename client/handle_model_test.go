package client_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/memcluster"
	"github.com/morainefs/moraine/internal/testseed"
)

// handleModel is the expected content of a file, and the handles on it.
type handleModel struct {
	t       *testing.T
	c       *cluster
	cl      *client.Client
	rng     *rand.Rand
	want    []byte
	handles []*client.Handle
}

// TestHandleModel compares handles on one file with its expected bytes, through random writes,
// truncations, appends, clones, holes and clones of ranges. Meanwhile messages are lost, leaders change, and one host at
// a time misbehaves. MORAINE_TEST_SEED repeats a run; MORAINE_TEST_LONG=1 makes it long.
func TestHandleModel(t *testing.T) {
	seed, steps := testseed.First(t), testseed.Of(100, 2000)
	inCluster(t, 7, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		m := &handleModel{t: t, c: c, cl: cl, rng: rand.New(rand.NewPCG(seed, 1))}
		m.handles = append(m.handles, openNew(t, c, cl, "f"))
		for i := range steps {
			disturb(c, m.rng, i)
			m.step()
		}
		c.Net.Heal()
		for _, h := range c.Hosts {
			h.Before(nil)
		}
		m.checkAll()
		for _, h := range m.handles {
			require.NoError(t, h.Close(c.ctx))
		}
		other := c.dial("c2", config())
		defer other.Close()
		m.same(read(t, c, other, "/f"), m.want, 0)
	})
}

func (m *handleModel) handle() *client.Handle { return m.handles[m.rng.IntN(len(m.handles))] }

// maxModel bounds the size of the model's file.
const maxModel = 3 << 20

func (m *handleModel) step() {
	switch k := m.rng.IntN(23); {
	case k < 6: // small writes anywhere, or in a run
		off := m.rng.Int64N(min(maxModel, int64(len(m.want))+100_000))
		for range m.rng.IntN(6) + 1 {
			p := bytesOf(m.rng.Uint64(), m.rng.IntN(9_000)+1)
			m.write(p, off)
			if off += int64(len(p)); m.rng.IntN(2) == 0 {
				off = m.rng.Int64N(maxModel)
			}
		}
	case k < 9: // a large one
		m.write(bytesOf(m.rng.Uint64(), m.rng.IntN(700_000)+1), m.rng.Int64N(maxModel))
	case k < 14:
		m.read(m.handle(), m.rng.Int64N(int64(len(m.want))+1000), m.rng.IntN(400_000))
	case k == 14:
		size := m.rng.IntN(len(m.want) + 200_000)
		require.NoError(m.t, m.handle().Truncate(m.c.ctx, int64(size)))
		m.resize(size)
	case k == 15:
		p := bytesOf(m.rng.Uint64(), m.rng.IntN(400_000)+1)
		off, n, err := m.handle().Append(m.c.ctx, p)
		require.NoError(m.t, err)
		require.Equal(m.t, len(p), n)
		require.EqualValues(m.t, len(m.want), off)
		m.want = append(m.want, p...)
	case k == 16:
		require.NoError(m.t, m.handle().Flush(m.c.ctx))
	case k == 17:
		time.Sleep(time.Duration(m.rng.IntN(4000)) * time.Millisecond)
	case k == 18:
		m.reopen()
	case k == 19:
		m.clone()
	case k < 22:
		m.changeRange()
	default:
		m.seek()
	}
}

func (m *handleModel) reopen() {
	if len(m.handles) > 1 {
		i := m.rng.IntN(len(m.handles))
		require.NoError(m.t, m.handles[i].Close(m.c.ctx))
		m.handles = append(m.handles[:i], m.handles[i+1:]...)
	}
	if len(m.handles) < 3 {
		h, err := m.cl.Inodes().OpenHandle(m.c.ctx, m.handles[0].Inode(), client.HandleOptions{})
		require.NoError(m.t, err)
		m.handles = append(m.handles, h)
	}
}

// clone copies the file. Half of the time the copy takes its place, with handles that were open
// on neither.
func (m *handleModel) clone() {
	_, err := m.cl.CloneFile(m.c.ctx, m.handles[0].Inode(), "/copy", client.CreateOptions{Replace: true})
	require.NoError(m.t, err)
	h, err := m.cl.Inodes().OpenHandle(m.c.ctx, m.c.inode(m.cl, "/copy"), client.HandleOptions{})
	require.NoError(m.t, err)
	if m.rng.IntN(2) == 0 {
		require.NoError(m.t, h.Close(m.c.ctx))
		return
	}
	for _, old := range m.handles {
		require.NoError(m.t, old.Close(m.c.ctx))
	}
	m.handles = []*client.Handle{h}
	require.NoError(m.t, m.cl.Rename(m.c.ctx, "/copy", "/f", client.RenameOptions{}))
	m.checkAll()
}

func (m *handleModel) resize(size int) {
	next := make([]byte, size)
	copy(next, m.want)
	m.want = next
}

func (m *handleModel) write(p []byte, off int64) {
	writeAt(m.t, m.c, m.handle(), p, off)
	if end := int(off) + len(p); end > len(m.want) {
		m.resize(end)
	}
	copy(m.want[off:], p)
}

func (m *handleModel) read(h *client.Handle, off int64, n int) {
	buf := make([]byte, n)
	got, err := h.ReadAt(m.c.ctx, buf, off)
	if err != io.EOF {
		require.NoError(m.t, err)
	}
	lo := min(off, int64(len(m.want)))
	m.same(buf[:got], m.want[lo:min(int64(len(m.want)), off+int64(n))], off)
}

func (m *handleModel) checkAll() {
	for _, h := range m.handles {
		require.EqualValues(m.t, len(m.want), h.Size())
		for off := 0; off <= len(m.want); off += 300_000 {
			m.read(h, int64(off), 300_000)
		}
	}
}

// same fails with the first byte that differs.
func (m *handleModel) same(got, want []byte, off int64) {
	m.t.Helper()
	require.Equal(m.t, len(want), len(got))
	if bytes.Equal(got, want) {
		return
	}
	for i := range want {
		if got[i] != want[i] {
			require.FailNow(m.t, "wrong byte", fmt.Sprintf("at %d of %d: %02x, not %02x", off+int64(i), len(m.want), got[i], want[i]))
		}
	}
}

// TestHandleModelAcrossExpiry is the same with sessions that expire. Unflushed bytes may be
// lost, but only if Flush reports it. Each block that a reader sees is either the earlier one
// or one written since.
func TestHandleModelAcrossExpiry(t *testing.T) {
	seed := testseed.First(t)
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		rng := rand.New(rand.NewPCG(seed, 2))
		const block, blocks = 8 << 10, 60
		h := openNew(t, c, cl, "f")
		may := make([][]byte, blocks) // possible values of a block, the newest last
		flushed := func() {
			err := h.Flush(c.ctx)
			got := make([]byte, block*blocks)
			require.NoError(t, h.Refresh(c.ctx))
			n, rerr := h.ReadAt(c.ctx, got, 0)
			if rerr != io.EOF {
				require.NoError(t, rerr)
			}
			for i := range may {
				v := byte(0)
				if i*block < n {
					v = got[i*block]
					require.Equal(t, bytes.Repeat([]byte{v}, block), got[i*block:(i+1)*block], "a torn block")
				}
				switch {
				case err == nil && len(may[i]) > 0:
					require.Equal(t, may[i][len(may[i])-1], v, "lost without a word")
				case len(may[i]) > 0:
					require.Contains(t, may[i], v)
				}
				may[i] = []byte{v}
			}
			if err != nil {
				require.ErrorIs(t, err, moraine.IOError)
			}
		}
		flushed()
		for round := range 12 {
			for range rng.IntN(40) {
				i := rng.IntN(blocks)
				v := byte(rng.IntN(255) + 1)
				writeAt(t, c, h, bytes.Repeat([]byte{v}, block), int64(i*block))
				may[i] = append(may[i], v)
				if rng.IntN(20) == 0 {
					time.Sleep(time.Duration(rng.IntN(2000)) * time.Millisecond)
				}
			}
			if round%3 == 1 {
				for _, m := range memcluster.Servers() {
					c.Net.Partition("c1", m)
				}
				if rng.IntN(2) == 0 {
					for _, host := range c.Hosts {
						c.Net.Partition("c1", host.ID)
					}
				}
				time.Sleep(time.Duration(40+rng.IntN(60)) * time.Second)
				c.Net.Heal()
			}
			flushed()
		}
		require.NoError(t, h.Close(c.ctx))
	})
}
