package client_test

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
)

// write writes a file in pieces whose size is piece.
func write(t *testing.T, c *cluster, cl *client.Client, path string, data []byte, piece int, stable bool) client.CommitResult {
	t.Helper()
	f, err := cl.Create(c.ctx, path, client.CreateOptions{Replace: true})
	require.NoError(t, err)
	for rest := data; len(rest) > 0; {
		n := min(piece, len(rest))
		w := f.Write
		if stable {
			w = f.WriteStable
		}
		m, err := w(rest[:n])
		require.NoError(t, err)
		require.Equal(t, n, m)
		rest = rest[n:]
	}
	res, err := f.Commit(c.ctx)
	require.NoError(t, err)
	require.EqualValues(t, len(data), res.Attr.Size())
	return res
}

// read reads a whole file in one call.
func read(t *testing.T, c *cluster, cl *client.Client, path string) []byte {
	t.Helper()
	r, err := cl.OpenFile(c.ctx, path)
	require.NoError(t, err)
	defer r.Close()
	got := make([]byte, r.Size())
	require.NoError(t, r.ReadRange(c.ctx, got, 0))
	return got
}

// Files of every size class, by every scheme and every way to write, read back as they were
// written, by every way to read.
func TestRoundTrip(t *testing.T) {
	const chunk = 64 << 10
	for _, scheme := range []string{"4+2", "x3", "x1", "2+1", "5+1"} {
		t.Run(scheme, func(t *testing.T) {
			inCluster(t, 6, func(c *cluster) {
				cfg := config()
				var err error
				cfg.Scheme, err = moraine.ParseScheme(scheme)
				require.NoError(t, err)
				cl := c.dial("c1", cfg)
				defer cl.Close()
				stripe := int(cfg.Scheme.K) * chunk
				for i, size := range []int{0, 1, 4095, 4096, 4097, chunk / 2, chunk/2 + 1, chunk, stripe - 1, stripe, stripe + 1,
					2*stripe + chunk/2 + 777, 7*stripe + 5} {
					for j, piece := range []int{3000, 70_000, 1 << 30} {
						path := fmt.Sprintf("/f-%d-%d", i, j)
						data := bytesOf(uint64(size+j), size)
						write(t, c, cl, path, data, piece, j == 1)
						require.True(t, bytes.Equal(data, read(t, c, cl, path)), "size %d", size)
					}
				}
			})
		})
	}
}

func TestReadAtAnywhere(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		data := bytesOf(1, 900_001)
		write(t, c, cl, "/f", data, 100_000, false)
		r, err := cl.OpenFile(c.ctx, "/f")
		require.NoError(t, err)
		defer r.Close()
		for off := int64(0); off < int64(len(data)); off += 37_777 {
			for _, n := range []int{1, 4096, 65_536, 300_000} {
				buf := make([]byte, n)
				got, err := r.ReadAt(c.ctx, buf, off)
				want := data[off:min(int(off)+n, len(data))]
				require.Equal(t, len(want), got)
				if len(want) < n {
					require.ErrorIs(t, err, io.EOF)
				} else {
					require.NoError(t, err)
				}
				require.True(t, bytes.Equal(want, buf[:got]))
			}
		}
		require.Error(t, r.ReadRange(c.ctx, make([]byte, 2), int64(len(data))-1))
		_, err = r.ReadAt(c.ctx, make([]byte, 1), -1)
		require.ErrorIs(t, err, moraine.InvalidArgument)
	})
}

func TestStreams(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		data := bytesOf(1, 3_000_001)
		f, err := cl.Create(c.ctx, "/f", client.CreateOptions{})
		require.NoError(t, err)
		n, err := f.ReadFrom(bytes.NewReader(data))
		require.NoError(t, err)
		require.EqualValues(t, len(data), n)
		_, err = f.Commit(c.within(time.Minute))
		require.NoError(t, err)

		for _, from := range []int64{0, 1, 70_000, int64(len(data))} {
			r, err := cl.OpenFile(c.ctx, "/f")
			require.NoError(t, err)
			s := r.NewStream(c.ctx, from)
			var out bytes.Buffer
			_, err = s.WriteTo(&out)
			require.NoError(t, err)
			require.True(t, bytes.Equal(data[from:], out.Bytes()))
			require.NoError(t, s.Close())

			r, err = cl.OpenFile(c.ctx, "/f")
			require.NoError(t, err)
			s = r.NewStream(c.ctx, from)
			got, err := io.ReadAll(struct{ io.Reader }{s})
			require.NoError(t, err)
			require.True(t, bytes.Equal(data[from:], got))
			require.NoError(t, s.Close())
		}
	})
}

// A stream of a range returns that range and fetches nothing past it.
func TestRangeStreams(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		data := bytesOf(1, 3_000_001)
		write(t, c, cl, "/f", data, 1<<30, false)
		size := int64(len(data))
		for _, at := range [][2]int64{{0, 1}, {0, size}, {1, 700_000}, {262_143, 2}, {262_144, 262_144}, {70_000, size}, {size - 1, 5}, {size, 5}, {9, 0}} {
			want := data[at[0]:min(size, at[0]+at[1])]
			for _, drain := range []func(*client.Stream) ([]byte, error){
				func(s *client.Stream) ([]byte, error) {
					var out bytes.Buffer
					_, err := s.WriteTo(&out)
					return out.Bytes(), err
				},
				func(s *client.Stream) ([]byte, error) { return io.ReadAll(struct{ io.Reader }{s}) },
			} {
				r, err := cl.OpenFile(c.ctx, "/f")
				require.NoError(t, err)
				before := cl.Stats().ReadBytes
				s := r.NewRangeStream(c.ctx, at[0], at[1])
				got, err := drain(s)
				require.NoError(t, err)
				require.True(t, bytes.Equal(want, got))
				require.NoError(t, s.Close())
				// A block that a read enters in the middle is fetched from its beginning.
				require.LessOrEqual(t, cl.Stats().ReadBytes-before, uint64(len(want)+1<<20))
			}
		}
		require.Zero(t, client.Held(cl))
	})
}

// One Reader serves many goroutines, sequential and others. It releases all memory when it is
// closed, even in the middle of a stream.
func TestReaderIsShared(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		data := bytesOf(1, 2_000_000)
		write(t, c, cl, "/f", data, 1<<30, false)
		r, err := cl.OpenFile(c.ctx, "/f")
		require.NoError(t, err)
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				step := int64(10_000 + 7_000*i)
				for n, off := int64(0), int64(i)*1000; off < r.Size(); n++ {
					buf := make([]byte, step)
					got, err := r.ReadAt(c.ctx, buf, off)
					if err != io.EOF {
						require.NoError(t, err)
					}
					require.True(t, bytes.Equal(data[off:off+int64(got)], buf[:got]))
					if off += step; i%2 == 0 {
						off += n % 5 * 1000
					}
				}
			})
		}
		wg.Wait()
		require.NoError(t, r.Close())

		r, err = cl.OpenFile(c.ctx, "/f")
		require.NoError(t, err)
		s := r.NewStream(c.ctx, 0)
		_, err = io.CopyN(io.Discard, struct{ io.Reader }{s}, 700_000)
		require.NoError(t, err)
		require.Positive(t, client.Held(cl), "something was fetched ahead")
		require.NoError(t, s.Close())
		require.NoError(t, s.Close())
		require.Zero(t, client.Held(cl))
		_, err = s.Read(make([]byte, 1))
		require.Error(t, err)
	})
}
