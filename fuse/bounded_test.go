package fuse_test

import (
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/fuse"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/stretchr/testify/require"
)

// No call takes longer than the mount's bound, however long the client waits for servers: while the
// metadata servers are down each fails with ETIMEDOUT. When they are back, all succeed.
func TestNoCallTakesLongerThanThePatience(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	m := mount(t, c, "c1", mountOptions{client: client.Config{Patience: time.Hour, CacheEntries: -1}, mount: fuse.Config{CallPatience: 2 * time.Second}})
	data := randomBytes(seed(t), 10<<10)
	require.NoError(t, os.WriteFile(m.at("file"), data, 0o644))
	fd, err := syscall.Open(m.at("file"), syscall.O_RDWR, 0)
	require.NoError(t, err)
	closed := false
	defer func() {
		if !closed {
			_ = syscall.Close(fd)
		}
	}()
	var st syscall.Stat_t
	calls := map[string]func() error{
		"stat": func() error { return syscall.Stat(m.at("file"), &st) },
		"open": func() error {
			n, err := syscall.Open(m.at("file"), syscall.O_RDONLY, 0)
			closeOpened(n, err)
			return err
		},
		"create": func() error {
			n, err := syscall.Open(m.at("new"), syscall.O_CREAT|syscall.O_WRONLY, 0o644)
			closeOpened(n, err)
			return err
		},
		"mkdir":    func() error { return syscall.Mkdir(m.at("directory"), 0o755) },
		"rename":   func() error { return syscall.Rename(m.at("file"), m.at("file")+"2") },
		"truncate": func() error { return syscall.Ftruncate(fd, 1) },
		"fsync":    func() error { return syscall.Fsync(fd) },
		"xattr":    func() error { return syscall.Setxattr(m.at("file"), "user.a", []byte("b"), 0) },
	}
	_, err = syscall.Pwrite(fd, data, int64(len(data)))
	require.NoError(t, err)
	c.Kill("m1")
	for name, call := range calls {
		ended := make(chan error, 1)
		go func() { ended <- call() }()
		select {
		case err := <-ended:
			require.Equal(t, syscall.ETIMEDOUT, err, name)
		case <-time.After(2 * time.Minute): // far below the client's own patience
			t.Fatalf("%s does not end", name)
		}
	}
	require.NoError(t, c.Restart("m1"))
	require.NoError(t, c.WaitReady(t.Context()))
	require.NoError(t, syscall.Fsync(fd), "what was written is still there, and is committed")
	closed = true
	require.NoError(t, syscall.Close(fd))
	got, err := os.ReadFile(m.at("file"))
	require.NoError(t, err)
	require.Equal(t, append(data, data...), got)
}

func closeOpened(fd int, err error) {
	if err == nil {
		_ = syscall.Close(fd)
	}
}
