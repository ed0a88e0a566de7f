package fuse_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// leased are the options of a mount whose client has cache leases.
func leased() mountOptions { return mountOptions{client: client.Config{CacheEntries: 10_000}} }

// withPages waits until the kernel has pages of a file that it may keep: a reading of the whole
// file by read and by open sends no request.
func (m *mounted) withPages(t *testing.T, path string) {
	t.Helper()
	require.Eventually(t, func() bool {
		before := m.fsys.Reads()
		_, err := os.ReadFile(path)
		require.NoError(t, err)
		return m.fsys.Reads() == before
	}, time.Minute, time.Millisecond, "the kernel keeps no pages of %s", path)
}

// A file that has been read is read again without a request to the mount, by any number of opens.
func TestFilesAreReadAgainFromTheKernelsPages(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	m, other := mount(t, c, "c1", leased()), mount(t, c, "c2", leased())
	data := randomBytes(seed(t), 3<<20+777)
	require.NoError(t, os.WriteFile(other.at("file"), data, 0o644))
	m.withPages(t, m.at("file"))
	before := m.fsys.Reads()
	for range 3 {
		got, err := os.ReadFile(m.at("file"))
		require.NoError(t, err)
		require.True(t, bytes.Equal(data, got))
	}
	require.Equal(t, before, m.fsys.Reads(), "requests for pages that the kernel has")
	// The mount learns of the last close after the close has returned.
	require.Eventually(t, func() bool { return m.fsys.PagesInUse() == 0 }, time.Minute, time.Millisecond)
}

// pagesReader has a file open, of which the kernel has all pages.
type pagesReader struct {
	t *testing.T
	f *os.File
}

func newPagesReader(t *testing.T, m *mounted, name string) *pagesReader {
	m.withPages(t, m.at(name))
	f, err := os.Open(m.at(name))
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return &pagesReader{t: t, f: f}
}

// content is what read returns of the open file, from the kernel's pages where it has them.
func (r *pagesReader) content() []byte {
	r.t.Helper()
	got, err := io.ReadAll(io.NewSectionReader(r.f, 0, 1<<40))
	require.NoError(r.t, err)
	return got
}

// An open reader whose bytes the kernel has sees each change that another mount has made, as soon
// as that mount's call has returned. So does the next open.
func TestChangesElsewhereReachKeptPages(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	m, other := mount(t, c, "c1", leased()), mount(t, c, "c2", leased())
	model := randomBytes(seed(t), 300<<10)
	require.NoError(t, os.WriteFile(other.at("file"), model, 0o644))
	r := newPagesReader(t, m, "file")
	peek := startPeeker(t, m.at("file"))
	require.True(t, bytes.Equal(model, r.content()))
	for i, change := range []func(f *os.File){
		func(f *os.File) { // overwritten
			p := randomBytes(seed(t)+1, 5000)
			_, err := f.WriteAt(p, 100_000)
			require.NoError(t, err)
			model = overwrite(model, p, 100_000)
		},
		func(f *os.File) { // appended to, within the last page
			_, err := f.WriteAt([]byte("more"), int64(len(model)))
			require.NoError(t, err)
			model = append(model[:len(model):len(model)], "more"...)
		},
		func(f *os.File) { // cut in the middle of a page
			require.NoError(t, f.Truncate(150_001))
			model = model[:150_001]
		},
		func(f *os.File) { // and extended by a hole
			require.NoError(t, f.Truncate(200_000))
			model = append(model[:len(model):len(model)], make([]byte, 49_999)...)
		},
	} {
		m.withPages(t, m.at("file"))
		require.Equal(t, fmt.Sprintf("%x", model[:peekBytes]), peek(0))
		require.Equal(t, fmt.Sprintf("%x", model[100_000:100_000+peekBytes]), peek(100_000))
		f, err := os.OpenFile(other.at("file"), os.O_RDWR, 0)
		require.NoError(t, err)
		change(f)
		require.NoError(t, f.Sync())
		require.Equal(t, fmt.Sprintf("%x", model[100_000:100_000+peekBytes]), peek(100_000), "mapped, change %d", i)
		require.True(t, bytes.Equal(model, r.content()), "open file, change %d", i)
		got, err := os.ReadFile(m.at("file"))
		require.NoError(t, err)
		require.True(t, bytes.Equal(model, got), "opened, change %d", i)
		require.NoError(t, f.Close())
	}
	m.withPages(t, m.at("file"))
	require.NoError(t, os.WriteFile(other.at("new"), []byte("another file"), 0o644))
	require.NoError(t, os.Rename(other.at("new"), other.at("file")))
	got, err := os.ReadFile(m.at("file"))
	require.NoError(t, err)
	require.Equal(t, "another file", string(got))
}

const peekBytes = 20

// mapPeek maps a file, and answers each line of its input, an offset, with the bytes there.
func mapPeek(args []string) error {
	return mapFile(args[0], unix.PROT_READ, unix.MAP_SHARED, func(_ *os.File, b []byte) error {
		offsets := bufio.NewScanner(os.Stdin)
		for offsets.Scan() {
			off, err := strconv.Atoi(offsets.Text())
			if err != nil {
				return err
			}
			fmt.Printf("%x\n", b[off:off+peekBytes])
		}
		return offsets.Err()
	})
}

// startPeeker starts a child that keeps a file mapped until the test ends, and returns a function
// that returns its bytes at an offset.
func startPeeker(t *testing.T, path string) func(off int) string {
	t.Helper()
	answer := startAnswering(t, "map-peek", path)
	return func(off int) string { return answer(off) }
}
