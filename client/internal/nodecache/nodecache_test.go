package nodecache

import (
	"bytes"
	"encoding/binary"
	"errors"
	"log/slog"
	"math/rand/v2"
	"path"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/metrics"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/vfs"
)

const testDir = "/cache"

// openAt opens a process's cache in the test's directory. Tests run in a bubble of synctest.
func openAt(t *testing.T, fs vfs.FS, bytes int64) *Cache {
	t.Helper()
	c, err := Open(Config{Dir: testDir, Bytes: bytes}, Deps{FS: fs, Clock: clock.System{}, Log: slog.New(slog.DiscardHandler), Metrics: metrics.NewMetrics(nil)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// contentOf returns the bytes of a content: a block that follows from inode and generation,
// repeated, with the number of the block at its beginning.
func contentOf(c Content) []byte {
	rng := rand.NewChaCha8([32]byte{byte(c.Inode), byte(c.Inode >> 8), byte(c.Generation)})
	block := make([]byte, 4096)
	_, _ = rng.Read(block)
	p := make([]byte, c.Size+4096)
	for i := int64(0); i < c.Size; i += 4096 {
		copy(p[i:], block)
		binary.LittleEndian.PutUint64(p[i:], uint64(i)^rng.Uint64())
	}
	return p[:c.Size]
}

func testContent(inode, generation uint64, size int64) Content {
	return Content{Cluster: moraine.UUID{1}, Incarnation: moraine.MarkedIncarnation{Number: 1}, Inode: moraine.InodeID(inode),
		Generation: moraine.Generation(generation), Size: size}
}

// addAll adds a content and waits until it is stored.
func addAll(c *Cache, content Content) {
	c.Add(content, contentOf(content), 0)
	synctest.Wait()
}

// checkRead reads a range and fails if the bytes are wrong. It returns whether they were there.
func checkRead(t *testing.T, c *Cache, content Content, off, n int64) bool {
	t.Helper()
	got := make([]byte, n)
	if !c.Read(content, got, off) {
		return false
	}
	if !bytes.Equal(got, contentOf(content)[off:off+n]) {
		t.Fatalf("wrong bytes of %v at %d+%d", content, off, n)
	}
	return true
}

func mustRead(t *testing.T, c *Cache, content Content, off, n int64) {
	t.Helper()
	if !checkRead(t, c, content, off, n) {
		t.Fatalf("the cache lacks %d bytes at %d of %d-%d", n, off, content.Inode, content.Generation)
	}
}

func TestReadsWhatWasAdded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := openAt(t, vfs.NewMem(1), 1<<30)
		for inode, size := range []int64{1, 4095, 4096, 4097, 16 * 4096, 16*4096 + 1, 100_000, span, span + 1, 2*span + 5000} {
			content := testContent(uint64(inode), 1, size)
			if checkRead(t, c, content, 0, size) {
				t.Fatal("an empty cache answers")
			}
			addAll(c, content)
			mustRead(t, c, content, 0, size)
			mustRead(t, c, content, size-1, 1)
			mustRead(t, c, content, size/3, max(1, size/2))
			other := content
			other.Generation++
			if checkRead(t, c, other, 0, size) {
				t.Fatal("the cache answers for another generation")
			}
		}
	})
}

func TestOnlyWholeBlocksAreStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := openAt(t, vfs.NewMem(1), 1<<30)
		content := testContent(1, 1, 10*4096+7)
		c.Add(content, contentOf(content)[100:3*4096+5], 100)
		synctest.Wait()
		mustRead(t, c, content, 4096, 2*4096)
		for _, off := range []int64{0, 100, 3 * 4096} {
			if checkRead(t, c, content, off, 5) {
				t.Fatalf("a part of a block is there, at %d", off)
			}
		}
		c.Add(content, contentOf(content)[9*4096:], 9*4096) // with the end, which is short
		synctest.Wait()
		mustRead(t, c, content, 9*4096, 4096+7)
		if checkRead(t, c, content, 2*4096, 2*4096) {
			t.Fatal("a range with a gap is there")
		}
	})
}

func TestProcessesShareTheDirectoryAndItSurvivesThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem(1)
		a, b := openAt(t, fs, 1<<30), openAt(t, fs, 1<<30)
		first, second := testContent(1, 1, 3*4096), testContent(1, 2, 50_000)
		addAll(a, first)
		mustRead(t, b, first, 0, first.Size)
		b.Add(second, contentOf(second)[:8192], 0)
		synctest.Wait()
		mustRead(t, a, second, 0, 8192)
		addAll(b, second) // a learns of the blocks that b adds to a file that a has open
		mustRead(t, a, second, 0, second.Size)
		a.Close()
		b.Close()
		mustRead(t, openAt(t, fs, 1<<30), second, 0, second.Size)
	})
}

func TestDamageIsAMiss(t *testing.T) {
	for name, at := range map[string]func(Part) int64{
		"header": func(Part) int64 { return 20 },
		"sum":    func(Part) int64 { return headerBytes + 1 },
		"length": func(Part) int64 { return headerBytes + 5 },
		"bytes":  func(p Part) int64 { return p.dataAt() + 77 },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fs := vfs.NewMem(1)
				c := openAt(t, fs, 1<<30)
				content := testContent(1, 1, 3*4096)
				addAll(c, content)
				c.Close()
				flip(t, fs, c.path(content.part(0).id()), at(content.part(0)))
				c = openAt(t, fs, 1<<30)
				if checkRead(t, c, content, 0, content.Size) {
					t.Fatal("the cache answers from a damaged file")
				}
				addAll(c, content)
				mustRead(t, c, content, 0, content.Size)
			})
		})
	}
}

// flip inverts a byte of a file.
func flip(t *testing.T, fs vfs.FS, name string, at int64) {
	t.Helper()
	f, err := fs.Open(name, vfs.Write)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 0xff
	if _, err := f.WriteAt(b[:], at); err != nil {
		t.Fatal(err)
	}
}

// A file under the name of another is not taken for it.
func TestMovedFileIsAMiss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem(1)
		c := openAt(t, fs, 1<<30)
		a, b := testContent(1, 1, 4096), testContent(2, 1, 4096)
		addAll(c, a)
		c.Close()
		if err := fs.Rename(c.path(a.part(0).id()), c.path(b.part(0).id())); err != nil {
			t.Fatal(err)
		}
		if checkRead(t, openAt(t, fs, 1<<30), b, 0, 4096) {
			t.Fatal("the cache answers with the bytes of another file")
		}
	})
}

func TestADirectoryOfSomethingElseIsRefused(t *testing.T) {
	fs := vfs.NewMem(1)
	if err := errors.Join(fs.MkdirAll(testDir), fs.MkdirAll(path.Join(testDir, "photos"))); err != nil {
		t.Fatal(err)
	}
	_, err := Open(Config{Dir: testDir, Bytes: MinBytes}, Deps{FS: fs, Clock: clock.System{}})
	if !errors.Is(err, moraine.InvalidArgument) || !strings.Contains(err.Error(), "photos") {
		t.Fatalf("a directory with other files: %v", err)
	}
}

func TestACacheThatIsNotThereAnswersNothing(t *testing.T) {
	var c *Cache
	c.Add(testContent(1, 1, 4096), make([]byte, 4096), 0)
	if c.Read(testContent(1, 1, 4096), make([]byte, 4096), 0) {
		t.Fatal("a nil cache answers")
	}
	c.Close()
}
