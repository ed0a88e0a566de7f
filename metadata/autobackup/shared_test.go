package autobackup_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata/autobackup"
	"github.com/morainefs/moraine/metadata/raftstore"
)

const shared = "/backups"

// source provides one snapshot whose second half is delayed until the test permits it.
type source struct {
	info   raftstore.BackupInfo
	stream []byte
	half   chan struct{} // closed after the first half was read
	once   sync.Once
	goOn   chan struct{}
}

func newSource(t *testing.T) *source {
	t.Helper()
	b, err := os.ReadFile("../raftstore/testdata/backup-v1.golden")
	require.NoError(t, err)
	info, err := raftstore.ReadBackup(bytes.NewReader(b), int64(len(b)))
	require.NoError(t, err)
	const trailer = 12
	return &source{info: info, stream: b[len(b)-trailer-int(info.Bytes) : len(b)-trailer], half: make(chan struct{}), goOn: make(chan struct{})}
}

// Snapshot implements autobackup.Source.
func (s *source) Snapshot(context.Context) (raftstore.BackupInfo, io.ReadCloser, error) {
	n := len(s.stream) / 2
	late := readerFunc(func([]byte) (int, error) { s.once.Do(func() { close(s.half) }); <-s.goOn; return 0, io.EOF })
	return s.info, io.NopCloser(io.MultiReader(bytes.NewReader(s.stream[:n]), late, bytes.NewReader(s.stream[n:]))), nil
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func server(t *testing.T, fsys vfs.FS, node string, src *source) *autobackup.Backups {
	t.Helper()
	b := autobackup.New(autobackup.Config{Dir: shared, Every: time.Hour, Keep: 3, Node: node, Cluster: src.info.Cluster},
		autobackup.Deps{FS: fsys, Clock: clock.System{}, Log: slog.New(slog.DiscardHandler)})
	go b.Run(t.Context(), src, 1)
	return b
}

// wholeBackups returns the backups in the directory, each of which must be complete, and the other
// files.
func wholeBackups(t *testing.T, fsys vfs.FS) (whole, others []string) {
	t.Helper()
	names, err := fsys.List(shared)
	require.NoError(t, err)
	for _, name := range names {
		if !strings.HasSuffix(name, ".backup") {
			others = append(others, name)
			continue
		}
		f, err := fsys.Open(path.Join(shared, name), 0)
		require.NoError(t, err)
		size, err := f.Size()
		require.NoError(t, err)
		_, err = raftstore.ReadBackup(f, size)
		require.NoError(t, err, "%s is under its name, and is not whole", name)
		require.NoError(t, f.Close())
		whole = append(whole, name)
	}
	return whole, others
}

// TestTwoServersShareADirectory: two servers that both believe they lead make a backup in one
// directory in the same second. Each backup is complete under its name, and neither fails.
func TestTwoServersShareADirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fsys := vfs.NewMem(1)
		first, second := newSource(t), newSource(t)
		a := server(t, fsys, "meta-1", first)
		<-first.half
		b := server(t, fsys, "meta-2", second)
		<-second.half
		close(first.goOn)
		synctest.Wait()
		whole, others := wholeBackups(t, fsys)
		require.Len(t, whole, 1)
		require.Len(t, others, 1, "the other server's is not done")
		close(second.goOn)
		synctest.Wait()
		whole, others = wholeBackups(t, fsys)
		require.Len(t, whole, 1)
		require.Empty(t, others)
		for _, s := range []*autobackup.Backups{a, b} {
			st, on := s.Status()
			require.True(t, on)
			require.NoError(t, st.Err)
			require.Equal(t, 1, st.Kept)
			require.False(t, st.Taken.IsZero())
		}
	})
}

// TestWhatWasCutShortIsRemoved: a server removes its own unfinished backup at once, and another
// server's after a day, because until then that may be in progress.
func TestWhatWasCutShortIsRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fsys := vfs.NewMem(1)
		require.NoError(t, fsys.MkdirAll(shared))
		src := newSource(t)
		close(src.goOn)
		const own, others, foreign = "-20000101T000000Z.meta-1.part", "-20000101T000000Z.meta-2.part", "metadata-00000000-20000101T000000Z.meta-1.part"
		prefix := "metadata-" + src.info.Cluster.String()[:8]
		left := []string{prefix + own, prefix + others, foreign, "part", prefix + "-.part", prefix + "-20000101T000000Z.part"}
		for _, name := range left {
			f, err := fsys.Open(path.Join(shared, name), vfs.Create)
			require.NoError(t, err)
			require.NoError(t, f.Close())
		}
		server(t, fsys, "meta-1", src) // the bubble begins at that time
		synctest.Wait()
		whole, kept := wholeBackups(t, fsys)
		require.Len(t, whole, 1)
		slices.Sort(kept)
		want := slices.DeleteFunc(slices.Clone(left), func(name string) bool { return name == prefix+own })
		slices.Sort(want)
		require.Equal(t, want, kept)

		time.Sleep(25*time.Hour + time.Minute)
		synctest.Wait()
		_, kept = wholeBackups(t, fsys)
		require.NotContains(t, kept, prefix+others)
		require.Contains(t, kept, foreign, "another cluster's is not ours to remove")
	})
}
