package client_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/transport/wire"
)

// smallFiles makes a directory of n files of 4 KiB, which a second client has listed, and returns the
// content of each.
func (c *cluster) smallFiles(maker, cl *client.Client, n int) (of map[string][]byte) {
	of = map[string][]byte{}
	_, err := maker.MkdirAll(c.ctx, "dir", 0o755)
	require.NoError(c.t, err)
	for i := range n {
		p := fmt.Sprintf("dir/%03d", i)
		of[p] = bytesOf(uint64(i), 4096)
		write(c.t, c, maker, p, of[p], 1<<20, false)
	}
	for _, err := range cl.ReadDir(c.ctx, "dir") {
		require.NoError(c.t, err)
	}
	synctest.Wait()
	return of
}

// readSmall reads a file through a handle, as a mount does.
func (c *cluster) readSmall(cl *client.Client, p string) []byte {
	a, err := cl.Stat(c.ctx, p)
	require.NoError(c.t, err)
	h, err := cl.Inodes().OpenHandle(c.ctx, a.Inode(), client.HandleOptions{})
	require.NoError(c.t, err)
	defer func() { require.NoError(c.t, h.Close(c.ctx)) }()
	got := make([]byte, a.Size())
	_, err = h.ReadAt(c.ctx, got, 0)
	require.NoError(c.t, err)
	return got
}

// countExtents counts the requests for content, and the files that they name besides.
func (c *cluster) countExtents() (requests, also *atomic.Int64) {
	requests, also = &atomic.Int64{}, &atomic.Int64{}
	c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
		if r := req.GetGetExtents(); r != nil {
			requests.Add(1)
			also.Add(int64(len(r.Also)))
		}
		return nil, nil
	})
	return requests, also
}

func TestSmallFilesOfADirectoryAreReadAhead(t *testing.T) {
	for _, shuffled := range []bool{false, true} {
		t.Run(fmt.Sprint("shuffled=", shuffled), func(t *testing.T) {
			inCluster(t, 1, func(c *cluster) {
				maker, cl := c.dial("c1", config()), c.dial("c2", config())
				defer maker.Close()
				defer cl.Close()
				const files = 200
				of := c.smallFiles(maker, cl, files)
				requests, also := c.countExtents()
				for _, i := range order(files, shuffled) {
					p := fmt.Sprintf("dir/%03d", i)
					require.True(t, bytes.Equal(of[p], c.readSmall(cl, p)), p)
				}
				require.Less(t, requests.Load(), int64(files/2))
				require.Equal(t, int64(files), requests.Load()+also.Load(), "each file was fetched once")
			})
		})
	}
}

func order(n int, shuffled bool) []int {
	if shuffled {
		return rand.New(rand.NewPCG(1, 2)).Perm(n)
	}
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// A file that another client writes after it was read ahead is read as it is now.
func TestAFileThatWasReadAheadIsCurrent(t *testing.T) {
	inCluster(t, 1, func(c *cluster) {
		maker, cl := c.dial("c1", config()), c.dial("c2", config())
		defer maker.Close()
		defer cl.Close()
		const files = 64
		of := c.smallFiles(maker, cl, files)
		for i := range files {
			p := fmt.Sprintf("dir/%03d", i)
			require.True(t, bytes.Equal(of[p], c.readSmall(cl, p)), p)
			next := fmt.Sprintf("dir/%03d", (i+1)%files)
			if i%2 == 0 {
				of[next] = bytesOf(uint64(100+i), 3000)
				write(t, c, maker, next, of[next], 1<<20, false)
			} else {
				require.NoError(t, maker.Remove(c.ctx, next))
				write(t, c, maker, next, of[next], 1<<20, false)
			}
		}
	})
}

// Reads of a few files of a large directory bring at most one other file each.
func TestReadsOfFewSmallFilesBringFewInVain(t *testing.T) {
	inCluster(t, 1, func(c *cluster) {
		maker, cl := c.dial("c1", config()), c.dial("c2", config())
		defer maker.Close()
		defer cl.Close()
		of := c.smallFiles(maker, cl, 400)
		requests, also := c.countExtents()
		for i := 0; i < 400; i += 16 { // one of each group
			p := fmt.Sprintf("dir/%03d", i)
			require.True(t, bytes.Equal(of[p], c.readSmall(cl, p)), p)
			time.Sleep(time.Second)
		}
		require.Equal(t, int64(25), requests.Load())
		require.LessOrEqual(t, also.Load(), int64(25))
	})
}
