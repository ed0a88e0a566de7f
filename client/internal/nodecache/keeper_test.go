package nodecache

import (
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/morainefs/moraine/internal/vfs"
)

func TestTheKeeperKeepsTheBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem(1)
		processes := []*Cache{openAt(t, fs, MinBytes), openAt(t, fs, MinBytes)}
		most := int64(0)
		for i := range 200 {
			addAll(processes[i%2], testContent(uint64(i), 1, 1<<20))
			time.Sleep(time.Second)
			u, err := fs.Usage(testDir)
			if err != nil {
				t.Fatal(err)
			}
			most = max(most, int64(u.Total-u.Free))
		}
		if limit := int64(MinBytes + 2*MinBytes/16 + 1<<20); most > limit || most < MinBytes/2 {
			t.Fatalf("the cache took %d bytes, want %d to %d", most, int64(MinBytes)/2, limit)
		}
		mustRead(t, processes[0], testContent(199, 1, 1<<20), 0, 1<<20)
	})
}

func TestFilesReadAgainSurviveAScan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := openAt(t, vfs.NewMem(1), MinBytes)
		for i := range 10 {
			addAll(c, testContent(uint64(i), 1, 1<<20))
			mustRead(t, c, testContent(uint64(i), 1, 1<<20), 0, 4096)
		}
		for i := range 250 { // files read once
			addAll(c, testContent(uint64(1000+i), 1, 1<<20))
			time.Sleep(time.Second)
		}
		for i := range 10 {
			mustRead(t, c, testContent(uint64(i), 1, 1<<20), 0, 1<<20)
		}
	})
}

func TestAnotherProcessBecomesTheKeeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem(1)
		a, b := openAt(t, fs, MinBytes), openAt(t, fs, MinBytes)
		synctest.Wait()
		a.Close()
		for i := range 200 {
			addAll(b, testContent(uint64(i), 1, 1<<20))
			time.Sleep(time.Second)
		}
		mustRead(t, b, testContent(199, 1, 1<<20), 0, 1<<20)
		u, err := fs.Usage(testDir)
		if err != nil || int64(u.Total-u.Free) > MinBytes+MinBytes/16+1<<20 {
			t.Fatalf("the cache takes %d bytes of %d (%v)", u.Total-u.Free, int64(MinBytes), err)
		}
	})
}

// A process that has an evicted file open neither reads from it nor adds to it.
func TestAnEvictedFileIsMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem(1)
		a, b := openAt(t, fs, 1<<30), openAt(t, fs, 1<<30)
		content := testContent(1, 1, 100_000)
		addAll(a, content)
		mustRead(t, a, content, 0, content.Size)
		if err := b.remove(content.part(0).id()); err != nil {
			t.Fatal(err)
		}
		if checkRead(t, a, content, 0, content.Size) {
			t.Fatal("the cache answers from a file that is evicted")
		}
		mustBeThereAfter := func(c *Cache) {
			t.Helper()
			addAll(c, content)
			mustRead(t, b, content, 0, content.Size)
		}
		mustBeThereAfter(a)
		if err := b.remove(content.part(0).id()); err != nil {
			t.Fatal(err)
		}
		mustBeThereAfter(a) // without a read, so it still has the file open
	})
}

func TestAFullOrFailingDiskCostsOnlyTheCache(t *testing.T) {
	for _, fault := range []error{syscall.ENOSPC, syscall.EIO} {
		for _, kind := range []vfs.OpKind{vfs.OpOpen, vfs.OpRead, vfs.OpWrite, vfs.OpList, vfs.OpStat, vfs.OpRemove, vfs.OpUsage, vfs.OpTruncate, vfs.OpLock} {
			t.Run(kind.String()+" "+fault.Error(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var failing atomic.Bool
					fs := vfs.NewFault(vfs.NewMem(1), func(op vfs.Op) error {
						if failing.Load() && op.Kind == kind {
							return fault
						}
						return nil
					})
					c := openAt(t, fs, MinBytes)
					synctest.Wait()
					failing.Store(true)
					for i := range 20 {
						addAll(c, testContent(uint64(i), 1, 1<<20))
						checkRead(t, c, testContent(uint64(i), 1, 1<<20), 0, 1<<20)
						time.Sleep(time.Second)
					}
					failing.Store(false)
					time.Sleep(10 * time.Minute)
					addAll(c, testContent(1000, 1, 1<<20))
					mustRead(t, c, testContent(1000, 1, 1<<20), 0, 1<<20)
				})
			})
		}
	}
}
