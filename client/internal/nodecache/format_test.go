package nodecache

import (
	"bytes"
	"flag"
	"os"
	"testing"
	"testing/synctest"

	"github.com/morainefs/moraine/internal/vfs"
)

var rewrite = flag.Bool("rewrite", false, "write the golden file again")

const golden = "testdata/cachefile"

// A cache file that an earlier build wrote can be read, and this build writes the same.
func TestGoldenCacheFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		content := testContent(7, 3, 5000)
		fs := vfs.NewMem(1)
		c := openAt(t, fs, 1<<30)
		addAll(c, content)
		name := c.path(content.part(0).id())
		written := contentsOf(t, fs, name)
		if *rewrite {
			if err := os.WriteFile(golden, written, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(want, written) {
			t.Fatalf("this build writes other bytes than %s", golden)
		}
	})
}

func contentsOf(t *testing.T, fs vfs.FS, name string) []byte {
	t.Helper()
	info, err := fs.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	f, err := fs.Open(name, vfs.Read)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p := make([]byte, info.Size)
	if _, err := f.ReadAt(p, 0); err != nil {
		t.Fatal(err)
	}
	return p
}

// FuzzReadCacheFile: whatever a cache file has, a read answers with bytes that match the sums in
// it, or not at all, and an addition mends it.
func FuzzReadCacheFile(f *testing.F) {
	good, err := os.ReadFile(golden)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:headerBytes+3])
	f.Add([]byte{})
	content := testContent(7, 3, 5000)
	f.Fuzz(func(t *testing.T, raw []byte) {
		fs := vfs.NewMem(1)
		file, err := fs.Open("/f", vfs.Create)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := file.WriteAt(raw, 0); err != nil {
			t.Fatal(err)
		}
		part := content.part(0)
		c, err := openCacheFile(fs, "/f", part, true)
		if err != nil {
			return
		}
		defer c.close()
		got := make([]byte, content.Size)
		if err := c.read(got, 0); err == nil {
			sums, err := c.sumsOf(0, part.blocks())
			if err != nil || sumOf(got[:blockSize]) != sums[0] || sumOf(got[blockSize:]) != sums[1] {
				t.Fatalf("the bytes that were read do not match their sums (%v)", err)
			}
		}
	})
}
