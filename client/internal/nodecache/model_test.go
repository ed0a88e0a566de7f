package nodecache

import (
	"math/rand/v2"
	"path"
	"testing"
	"testing/synctest"
	"time"

	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/internal/vfs"
)

// Random reads, additions, restarts, power cuts, flipped bits and evictions of two processes:
// what the cache answers is right.
func TestRandomWorkNeverGetsWrongBytes(t *testing.T) {
	for _, seed := range testseed.Seeds(t, 3, 200) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			fs := vfs.NewMem(seed)
			processes := []*Cache{openAt(t, fs, MinBytes), openAt(t, fs, MinBytes)}
			hits := 0
			for range 600 {
				i := rng.IntN(2)
				c := processes[i]
				content := testContent(rng.Uint64N(8), 1+rng.Uint64N(2), 0)
				content.Size = []int64{100, 4096, 70_000, 3 << 20, span + 12345}[uint64(content.Inode)%5]
				off := rng.Int64N(content.Size)
				n := 1 + rng.Int64N(content.Size-off)
				switch k := rng.IntN(20); {
				case k < 9:
					c.Add(content, contentOf(content)[off:off+n], off)
				case k < 16:
					if checkRead(t, c, content, off, n) {
						hits++
					}
				case k == 16:
					time.Sleep(time.Duration(rng.IntN(20)) * time.Second)
				case k == 17:
					addAll(c, testContent(100+rng.Uint64N(100), 1, 2<<20))
				case k == 18 && rng.IntN(4) == 0:
					flipAny(t, fs, rng)
				case k == 19 && rng.IntN(4) == 0:
					c.Close()
					if rng.IntN(2) == 0 {
						processes[1-i].Close()
						fs = fs.Crash(rng)
						processes[1-i] = openAt(t, fs, MinBytes)
					}
					processes[i] = openAt(t, fs, MinBytes)
				}
			}
			if hits == 0 {
				t.Fatalf("seed %d: no read was answered: the test proves nothing", seed)
			}
		})
	}
}

// flipAny inverts a byte of some cache file.
func flipAny(t *testing.T, fs vfs.FS, rng *rand.Rand) {
	t.Helper()
	var files []string
	shards, err := fs.List(testDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, shard := range shards {
		if !isShard(shard) {
			continue
		}
		names, err := fs.List(path.Join(testDir, shard))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			files = append(files, path.Join(testDir, shard, name))
		}
	}
	if len(files) == 0 {
		return
	}
	name := files[rng.IntN(len(files))]
	if info, err := fs.Stat(name); err == nil && info.Size > 0 {
		flip(t, fs, name, rng.Int64N(info.Size))
	}
}
