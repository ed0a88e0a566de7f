package fuse_test

import (
	"bytes"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/fuse"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/stretchr/testify/require"
)

// A read at the end of a file frees its memory: a mount with default settings
// answers more of them than its memory has room for at once.
func TestReadsAtEndOfFileKeepNoMemory(t *testing.T) {
	const each = 64 << 10
	c := startCluster(t, incluster.Options{Seed: 1})
	m := mount(t, c, "c1", mountOptions{mount: fuse.Config{Patience: 20 * time.Second}})
	require.NoError(t, os.WriteFile(m.at("file"), []byte("content"), 0o644))
	f, err := os.Open(m.at("file"))
	require.NoError(t, err)
	defer f.Close() //nolint:errcheck // it was only read
	var reads atomic.Int64
	ended := make(chan error, 1)
	go func() {
		buf := make([]byte, each)
		for range fuse.DefaultReadBytes/each + 100 {
			if n, err := syscall.Pread(int(f.Fd()), buf, 7); err != nil || n != 0 {
				ended <- err
				return
			}
			reads.Add(1)
		}
		ended <- nil
	}()
	select {
	case err := <-ended:
		require.NoError(t, err, "after %d reads at the end of the file", reads.Load())
	case <-time.After(2 * time.Minute):
		t.Fatalf("read %d at the end of the file does not return", reads.Load()+1)
	}
	require.Zero(t, m.fsys.ReadMemory())
	got, err := os.ReadFile(m.at("file"))
	require.NoError(t, err)
	require.Equal(t, "content", string(got))
}

// lockedBuffer is a bytes.Buffer for several goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// A read that gets no memory for its reply within the patience fails with ETIMEDOUT
// and a log line. Reads that have memory continue.
func TestReadsDoNotWaitForMemoryBeyondThePatience(t *testing.T) {
	const size = 1 << 20
	c := startCluster(t, incluster.Options{Seed: 1})
	servers, log := &gate{}, &lockedBuffer{}
	m := mount(t, c, "c1", mountOptions{over: servers.over, log: log,
		client: client.Config{GetTimeout: 10 * time.Minute, HedgeFloor: time.Minute, Patience: 10 * time.Minute},
		mount:  fuse.Config{ReadBytes: size, Patience: time.Second}})
	writer := mount(t, c, "c2")
	data := randomBytes(seed(t), size)
	open := func(name string) int { // reads of one file would wait for each other's pages
		require.NoError(t, os.WriteFile(writer.at(name), data, 0o644))
		fd, err := syscall.Open(m.at(name), syscall.O_RDONLY, 0)
		require.NoError(t, err)
		t.Cleanup(func() { _ = syscall.Close(fd) })
		return fd
	}
	first, second := open("first"), open("second")
	servers.hold("get_chunk", 0)
	defer servers.open()
	got, read := make([]byte, size), make(chan error, 1)
	go func() {
		_, err := syscall.Pread(first, got, 0)
		read <- err
	}()
	require.Eventually(t, func() bool { return m.fsys.ReadMemory() == size }, time.Minute, time.Millisecond)
	_, err := syscall.Pread(second, make([]byte, size), 0)
	require.Equal(t, syscall.ETIMEDOUT, err)
	require.Equal(t, 1, strings.Count(log.String(), "resource wait exceeded"), log.String())
	require.Contains(t, log.String(), "memory of read replies")
	servers.open()
	require.NoError(t, <-read)
	require.True(t, bytes.Equal(data, got))
	_, err = syscall.Pread(second, got, 0)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return m.fsys.ReadMemory() == 0 }, time.Minute, time.Millisecond)
}
