package client_test

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/memcluster"
	"github.com/morainefs/moraine/transport/memnet"
)

// model is the expected namespace: files by path, and directories.
type model struct {
	files map[string][]byte
	dirs  map[string]bool
}

// TestRandomOperations compares the client with the model, while messages are lost, leaders
// change, and one host at a time misbehaves. MORAINE_SEED and MORAINE_STEPS select the run.
func TestRandomOperations(t *testing.T) {
	seed, steps := uint64(time.Now().UnixNano()), 300
	if s := os.Getenv("MORAINE_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	if s := os.Getenv("MORAINE_STEPS"); s != "" {
		steps, _ = strconv.Atoi(s)
	}
	t.Logf("MORAINE_SEED=%d", seed)
	inCluster(t, 7, func(c *cluster) {
		rng := rand.New(rand.NewPCG(seed, 0))
		cl := c.dial("c1", config())
		defer cl.Close()
		m := &model{files: map[string][]byte{}, dirs: map[string]bool{"/": true}}
		for i := range steps {
			disturb(c, rng, i)
			m.step(t, c, cl, rng)
		}
		c.Net.Heal()
		for _, h := range c.Hosts {
			h.Before(nil)
		}
		m.check(t, c, cl)
	})
}

// disturb changes the faults of the cluster, from time to time.
func disturb(c *cluster, rng *rand.Rand, i int) {
	switch {
	case i%20 == 5:
		for _, h := range c.Hosts {
			h.Before(nil)
		}
		h := c.Hosts[rng.IntN(len(c.Hosts))]
		names := []string{"I/O error", "hangs", "slow"}
		damages[names[rng.IntN(len(names))]](h)
	case i%20 == 12:
		c.Elect(fmt.Sprintf("m%d", rng.IntN(3)+1))
	case i%20 == 17:
		f := memnet.Faults{LoseReply: rng.Float64() * 0.1, LoseRequest: rng.Float64() * 0.1, MaxDelay: 5 * time.Millisecond}
		for _, h := range c.Hosts {
			c.Net.SetFaults("c1", h.ID, f)
			c.Net.SetFaults(h.ID, "c1", f)
		}
		for _, s := range memcluster.Servers() {
			c.Net.SetFaults("c1", s, f)
			c.Net.SetFaults(s, "c1", f)
		}
	}
}

func pick(rng *rand.Rand, m map[string]bool) string {
	keys := slices.Sorted(maps.Keys(m))
	return keys[rng.IntN(len(keys))]
}

func (m *model) name(rng *rand.Rand) string {
	return path.Join(pick(rng, m.dirs), fmt.Sprintf("n%d", rng.IntN(6)))
}

func (m *model) exists(p string) bool { _, file := m.files[p]; return file || m.dirs[p] }

// below reports whether anything is below directory p.
func (m *model) below(p string) bool {
	for q := range m.files {
		if strings.HasPrefix(q, p+"/") {
			return true
		}
	}
	for q := range m.dirs {
		if strings.HasPrefix(q, p+"/") {
			return true
		}
	}
	return false
}

func (m *model) step(t *testing.T, c *cluster, cl *client.Client, rng *rand.Rand) {
	p := m.name(rng)
	switch rng.IntN(10) {
	case 0, 1, 2:
		m.write(t, c, cl, rng, p)
	case 3, 4, 5:
		m.read(t, c, cl, rng, p)
	case 6:
		_, err := cl.Mkdir(c.ctx, p, 0)
		if m.exists(p) {
			require.ErrorIs(t, err, moraine.Exists, p)
			return
		}
		require.NoError(t, err)
		m.dirs[p] = true
	case 7:
		m.remove(t, c, cl, p)
	case 8:
		m.rename(t, c, cl, p, m.name(rng))
	case 9:
		data, ok := m.files[p]
		if !ok {
			return
		}
		size := rng.IntN(600_000)
		_, err := cl.SetAttr(c.ctx, p, client.SetAttr{Size: new(int64(size))})
		require.NoError(t, err)
		next := make([]byte, size)
		copy(next, data)
		m.files[p] = next
	}
}

func (m *model) write(t *testing.T, c *cluster, cl *client.Client, rng *rand.Rand, p string) {
	f, err := cl.Create(c.ctx, p, client.CreateOptions{Replace: true})
	if m.dirs[p] {
		require.ErrorIs(t, err, moraine.IsDirectory)
		return
	}
	require.NoError(t, err)
	data := bytesOf(rng.Uint64(), []int{0, 10, 5_000, 40_000, 300_000, 1_100_000}[rng.IntN(6)])
	for rest := data; len(rest) > 0; {
		n := min(1+rng.IntN(400_000), len(rest))
		if rng.IntN(2) == 0 {
			_, err = f.Write(rest[:n])
		} else {
			_, err = f.WriteStable(rest[:n])
		}
		require.NoError(t, err)
		rest = rest[n:]
		if rng.IntN(8) == 0 {
			require.NoError(t, f.Flush(c.ctx))
		}
	}
	if rng.IntN(6) == 0 {
		f.Abort()
		return
	}
	_, err = f.Commit(c.ctx)
	require.NoError(t, err)
	m.files[p] = data
}

func (m *model) read(t *testing.T, c *cluster, cl *client.Client, rng *rand.Rand, p string) {
	data, ok := m.files[p]
	r, err := cl.OpenFile(c.ctx, p)
	switch {
	case m.dirs[p]:
		require.ErrorIs(t, err, moraine.IsDirectory)
		return
	case !ok:
		require.ErrorIs(t, err, moraine.NotFound)
		return
	}
	require.NoError(t, err)
	defer r.Close()
	require.EqualValues(t, len(data), r.Size())
	if rng.IntN(2) == 0 {
		got, err := io.ReadAll(r.NewStream(c.ctx, 0))
		require.NoError(t, err)
		require.True(t, bytes.Equal(data, got))
		return
	}
	for range 4 {
		off := rng.Int64N(int64(len(data)) + 1)
		buf := make([]byte, rng.IntN(200_000))
		n, err := r.ReadAt(c.ctx, buf, off)
		if err != io.EOF {
			require.NoError(t, err)
		}
		require.True(t, bytes.Equal(data[off:min(int(off)+len(buf), len(data))], buf[:n]))
	}
}

func (m *model) remove(t *testing.T, c *cluster, cl *client.Client, p string) {
	err := cl.Remove(c.ctx, p)
	switch {
	case !m.exists(p):
		require.ErrorIs(t, err, moraine.NotFound)
	case m.below(p):
		require.ErrorIs(t, err, moraine.NotEmpty)
		require.NoError(t, cl.RemoveAll(c.ctx, p))
		maps.DeleteFunc(m.files, func(q string, _ []byte) bool { return strings.HasPrefix(q, p+"/") })
		maps.DeleteFunc(m.dirs, func(q string, _ bool) bool { return q == p || strings.HasPrefix(q, p+"/") })
	default:
		require.NoError(t, err)
		delete(m.files, p)
		delete(m.dirs, p)
	}
}

func (m *model) rename(t *testing.T, c *cluster, cl *client.Client, from, to string) {
	if !m.exists(from) || from == to || strings.HasPrefix(to, from+"/") || m.dirs[from] || m.dirs[to] {
		return // the tests of the state machine cover the rules of directories
	}
	require.NoError(t, cl.Rename(c.ctx, from, to, client.RenameOptions{}))
	m.files[to] = m.files[from]
	delete(m.files, from)
}

// check walks the whole namespace.
func (m *model) check(t *testing.T, c *cluster, cl *client.Client) {
	files, dirs := map[string]bool{}, map[string]bool{}
	require.NoError(t, cl.Walk(c.ctx, "/", func(p string, a client.Attr) error {
		if a.IsDir() {
			dirs[p] = true
			return nil
		}
		files[p] = true
		require.True(t, bytes.Equal(m.files[p], read(t, c, cl, p)), p)
		return nil
	}))
	require.Equal(t, slices.Sorted(maps.Keys(m.dirs)), slices.Sorted(maps.Keys(dirs)))
	require.Equal(t, slices.Sorted(maps.Keys(m.files)), slices.Sorted(maps.Keys(files)))
}
