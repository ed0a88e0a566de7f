package integration_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/stretchr/testify/require"
)

// crashed reports whether an error is one that a crash of the daemon may cause where what was done
// last in a delegated directory is lost.
func crashed(err error) bool {
	return errors.Is(err, syscall.EIO) || errors.Is(err, syscall.ESTALE) || errors.Is(err, syscall.ETIMEDOUT) || errors.Is(err, syscall.ENOENT)
}

// putEach puts numbered files into a directory until stop is set: each is made, written and closed. It
// returns those whose close succeeded.
func putEach(dir, prefix string, stop *atomic.Bool) (safe []string, err error) {
	for i := 0; !stop.Load(); i++ {
		name := fmt.Sprint(prefix, i)
		err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644)
		switch {
		case err == nil:
			safe = append(safe, name)
		case !crashed(err):
			return safe, err
		}
	}
	return safe, nil
}

// TestACrashInADelegatedDirectory: the daemon is killed again and again while programs make files in a
// delegated directory. Every file whose close succeeded is there, with its content. Files that were
// lost while they were open fail, and do not wait. Then this mount and others work in the directory.
func TestACrashInADelegatedDirectory(t *testing.T) {
	t.Parallel()
	c, m := supervised(t, "--delegation")
	other := connect(t, c, client.Config{})
	dir := filepath.Join(m.dir, "dir")
	require.NoError(t, os.Mkdir(dir, 0o755))
	for round := range rounds(4, 20) {
		var stop atomic.Bool
		type result struct {
			safe []string
			err  error
		}
		results := make(chan result, 2)
		for w := range 2 {
			go func() {
				safe, err := putEach(dir, fmt.Sprintf("r%dw%d-", round, w), &stop)
				results <- result{safe, err}
			}()
		}
		time.Sleep(300 * time.Millisecond) // of work
		var held []*os.File
		for i := range 50 {
			f, err := os.Create(filepath.Join(dir, fmt.Sprintf("r%dheld%d", round, i)))
			require.NoError(t, err)
			held = append(held, f)
		}
		m.crash(t)
		stop.Store(true)
		for _, f := range held {
			_, err := f.Write([]byte("x"))
			if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
				require.True(t, crashed(err), err)
			}
		}
		count := 0
		for range 2 {
			r := <-results
			require.NoError(t, r.err)
			count += len(r.safe)
			for _, name := range r.safe {
				got, err := os.ReadFile(filepath.Join(dir, name))
				require.NoError(t, err)
				require.Equal(t, name, string(got))
			}
		}
		require.NotZero(t, count)
		own := fmt.Sprint("own", round)
		require.NoError(t, os.WriteFile(filepath.Join(dir, own), nil, 0o644))
		require.NoError(t, os.Rename(filepath.Join(dir, own), filepath.Join(dir, own+"-renamed")))
		_, err := other.Stat(t.Context(), "/dir/"+own+"-renamed")
		require.NoError(t, err)
		_, err = other.Mkdir(t.Context(), fmt.Sprint("/dir/other", round), 0o755)
		require.NoError(t, err)
		t.Logf("%d files closed", count)
		if long() {
			time.Sleep(15 * time.Second) // fewer than the supervisor takes for a loop
		}
	}
	m.umount(t)
}

// TestAnUpgradeSendsWhatIsQueued: files are made in a delegated directory, and neither written nor synced.
// An upgrade loses none of them.
func TestAnUpgradeSendsWhatIsQueued(t *testing.T) {
	t.Parallel()
	c, m := supervised(t, "--delegation")
	other := connect(t, c, client.Config{})
	dir := filepath.Join(m.dir, "dir")
	require.NoError(t, os.Mkdir(dir, 0o755))
	var stop atomic.Bool
	made := make(chan int, 1)
	go func() {
		n := 0
		for ; !stop.Load(); n++ {
			f, err := os.OpenFile(filepath.Join(dir, number(n)), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
			if err != nil {
				t.Error(err)
				break
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		}
		made <- n
	}()
	for range rounds(3, 20) {
		time.Sleep(200 * time.Millisecond) // of work
		out, err := m.moraine("mount", "--upgrade", m.dir, "--json")
		require.NoError(t, err, out)
	}
	stop.Store(true)
	n := <-made
	for i := range n {
		_, err := other.Stat(t.Context(), "/dir/"+number(i))
		require.NoError(t, err)
	}
	t.Logf("%d files", n)
	m.umount(t)
}

// TestFilesRemovedElsewhereSurviveACrash: a file is open while the daemon is dead, and another client
// removes it. It stays until it is closed, across further crashes.
func TestFilesRemovedElsewhereSurviveACrash(t *testing.T) {
	t.Parallel()
	c, m := supervised(t)
	other := connect(t, c, client.Config{})
	data := randomBytes(random(seed(t)), 100_000)
	require.NoError(t, os.WriteFile(filepath.Join(m.dir, "file"), data, 0o644))
	held, err := os.Open(filepath.Join(m.dir, "file"))
	require.NoError(t, err)
	defer held.Close()
	a, err := other.Stat(t.Context(), "/file")
	require.NoError(t, err)
	gone := func(inode moraine.InodeID) {
		t.Helper()
		require.Eventually(t, func() bool {
			_, err := other.Inodes().Stat(t.Context(), inode)
			return moraine.KindOf(err) == moraine.NotFound
		}, 2*time.Minute, 50*time.Millisecond)
	}
	old := m.killDaemon(t, 0)
	require.NoError(t, other.Remove(t.Context(), "/file"))
	for range 2 {
		m.daemon(t, old)
		// A file that loses its name later, and is not open, goes when each session has kept what it has open.
		later, err := other.Inodes().Create(t.Context(), other.Root(), "later", client.NodeOptions{Mode: 0o644})
		require.NoError(t, err)
		require.NoError(t, other.Remove(t.Context(), "/later"))
		gone(later.Inode())
		got := make([]byte, len(data))
		_, err = held.ReadAt(got, 0)
		require.NoError(t, err)
		require.Equal(t, data, got)
		old = m.killDaemon(t, 0)
	}
	_, err = io.ReadAll(held)
	require.NoError(t, err)
	require.NoError(t, held.Close())
	gone(a.Inode())
	m.umount(t)
}
