package integration_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/devcluster"
)

// TestMountSurvivesLeaderKill with delegated directories.
func TestDelegatedDirectoriesSurviveLeaderKill(t *testing.T) { surviveLeaderKills(t, "--delegation") }

// number is the name of a numbered file.
func number(i int) string { return fmt.Sprintf("f%06d", i) }

// makeNumbered makes numbered files until it fails, in one order: each next one is empty, or is
// written and closed, or the directory is synced after it. safe is the last file that must not be lost.
// written says whether each file is written.
func makeNumbered(dir string, written bool, safe *atomic.Int64) (made int) {
	for ; ; made++ {
		name := filepath.Join(dir, number(made))
		f, err := os.OpenFile(name+".new", os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if err != nil {
			return made
		}
		if written || made%50 == 10 {
			_, err = f.WriteString(name)
		}
		if cerr := f.Close(); err != nil || cerr != nil || os.Rename(name+".new", name) != nil {
			return made
		}
		if made%50 == 30 {
			d, err := os.Open(dir)
			if err != nil {
				return made
			}
			err = d.Sync()
			if _ = d.Close(); err != nil {
				return made
			}
			safe.Store(int64(made))
		}
	}
}

// A mount that is killed loses only the end of what it did in a delegated directory. What an fsync
// waited for is there. If one change is lost, all that came after it are lost.
func TestAKilledMountLosesOnlyTheEndOfItsQueue(t *testing.T) { loseTheEnd(t, false, "--delegation") }

// With --ack local that holds for files with content too, which are closed at once. A file that is there has its
// content.
func TestAKilledMountAtLevelLocalLosesOnlyTheEnd(t *testing.T) { loseTheEnd(t, true, "--ack=local") }

func loseTheEnd(t *testing.T, written bool, flag string) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Chunkservers: 3})
	other := connect(t, c, client.Config{})
	r := random(seed(t))
	for round := range rounds(3, 20) {
		m := mountCluster(t, c, flag, "--no-supervisor")
		name := fmt.Sprint("dir", round)
		require.NoError(t, os.Mkdir(filepath.Join(m.dir, name), 0o755))
		var safe atomic.Int64
		safe.Store(-1)
		made := make(chan int, 1)
		go func() { made <- makeNumbered(filepath.Join(m.dir, name), written, &safe) }()
		// The directory is delegated once what the kernel was lent of it has ended.
		require.Eventually(t, func() bool { return safe.Load() >= 1000 }, time.Minute, time.Millisecond)
		time.Sleep(time.Duration(r.IntN(100)) * time.Millisecond)
		m.kill(t)
		count, kept := <-made, map[string]int64{}
		require.NoError(t, other.Walk(t.Context(), "/"+name, func(path string, a client.Attr) error {
			kept[filepath.Base(path)] = a.Size()
			return nil
		}))
		there := 0
		for ; there < count; there++ {
			size, ok := kept[number(there)]
			if !ok {
				break
			}
			if written || there%50 == 10 {
				require.NotZero(t, size, number(there))
			}
		}
		for i := there + 1; i <= count; i++ {
			require.NotContains(t, kept, number(i), "file %d is not there", there)
		}
		require.Greater(t, int64(there), safe.Load())
		t.Logf("%d made, %d there, %d synced", count, there, safe.Load()+1)
		out, err := m.moraine("umount", m.dir)
		require.NoError(t, err, out)
	}
}
