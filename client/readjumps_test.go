package client_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client"
)

// jumpReader reads a file and compares each read with the bytes that were written.
type jumpReader struct {
	t    *testing.T
	c    *cluster
	r    *client.Reader
	data []byte
}

func (j jumpReader) read(off, n int) {
	j.t.Helper()
	p := make([]byte, min(n, len(j.data)-off))
	_, err := j.r.ReadAt(j.c.ctx, p, int64(off))
	require.NoError(j.t, err)
	require.True(j.t, bytes.Equal(j.data[off:off+len(p)], p), "at %d", off)
}

// fetched is how many bytes the servers give while do reads a file of n bytes with a reader of its
// own, and how many requests they get. The reader fetches 2 MiB ahead at most.
func fetched(t *testing.T, n int, do func(jumpReader)) (total, requests int64) {
	inCluster(t, 6, func(c *cluster) {
		cfg := config()
		cfg.ReadaheadBytes = 2 << 20
		cl := c.dial("c1", cfg)
		defer cl.Close()
		data := bytesOf(7, n)
		write(t, c, cl, "/f", data, 1<<30, false)
		counts := func() (total, requests int64) {
			for _, h := range c.Hosts {
				total, requests = total+h.Counts().GetBytes, requests+h.Counts().Gets
			}
			return total, requests
		}
		before, asked := counts()
		r, err := cl.OpenFile(c.ctx, "/f")
		require.NoError(t, err)
		do(jumpReader{t, c, r, data})
		require.NoError(t, r.Close())
		total, requests = counts()
		total, requests = total-before, requests-asked
	})
	return total, requests
}

// TestAReaderThatLooksElsewhereKeepsWhatWasFetched: torch.load reads the end of each archive before its
// bytes, and its beginning twice. What was fetched ahead stays: the servers give few bytes more than
// those that are read in order.
func TestAReaderThatLooksElsewhereKeepsWhatWasFetched(t *testing.T) {
	const size, slice, buffer = 16 << 20, 1_200_000, 16 << 10
	total, requests := fetched(t, size, func(j jumpReader) {
		for off := 0; off+slice <= size; off += slice {
			end := off + slice
			j.read(off, buffer)
			j.read(end-4000, buffer) // also the beginning of the next one
			j.read(off, buffer)
			for at := off + buffer; at < end-1000; at += 128 << 10 { // the last 1,000 bytes are the index of the archive
				j.read(at, min(128<<10, end-1000-at))
			}
		}
	})
	require.Less(t, total, int64(size+size/8))
	_, inOrder := fetched(t, size, func(j jumpReader) {
		for at := 0; at < size; at += 128 << 10 {
			j.read(at, 128<<10)
		}
	})
	require.Less(t, requests, 2*inOrder)
}

// TestSeveralReadersInOrder: two programs that read one open file in order, each in a half of it, get
// each byte fetched once.
func TestSeveralReadersInOrder(t *testing.T) {
	const size, n = 16 << 20, 64 << 10
	total, _ := fetched(t, size, func(j jumpReader) {
		for at := 0; at < size/2; at += n {
			j.read(at, n)
			j.read(size/2+at, n)
		}
	})
	require.Less(t, total, int64(size+size/8))
}

// TestRandomReadsFetchNothingAhead: reads without an order cost their own blocks alone.
func TestRandomReadsFetchNothingAhead(t *testing.T) {
	const size, n, reads = 16 << 20, 4096, 400
	rng := rand.New(rand.NewPCG(1, 2))
	total, requests := fetched(t, size, func(j jumpReader) {
		for range reads {
			j.read(rng.IntN(size/n)*n, n)
		}
	})
	require.LessOrEqual(t, total, int64(2*reads*n))
	require.LessOrEqual(t, requests, int64(2*reads))
}

// TestRecordsAreFetchedAheadToTheirEnd: a reader of records, each in order and the next one elsewhere, gets
// few bytes behind them. What it then reads in order for longer is fetched ahead like any other.
func TestRecordsAreFetchedAheadToTheirEnd(t *testing.T) {
	const size, record, n, records = 32 << 20, 768 << 10, 64 << 10, 30
	rng := rand.New(rand.NewPCG(1, 2))
	each := func(j jumpReader) {
		for range records {
			at := rng.IntN((size-record)/record) * record
			for off := at; off < at+record; off += n {
				j.read(off, n)
			}
		}
	}
	total, _ := fetched(t, size, each)
	t.Logf("%d bytes fetched for %d", total, records*record)
	require.LessOrEqual(t, total, int64(records*record*3/2))

	whole, _ := fetched(t, size, func(j jumpReader) {
		each(j)
		for at := 0; at < size; at += n {
			j.read(at, n)
		}
	})
	require.Less(t, whole, int64(records*record*3/2+size+size/4))
}
