package fuse_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/fuse"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/memnet"
	"github.com/stretchr/testify/require"
)

// The tests mount for real: the kernel's requests go through the real server to a
// cluster inside this process, whose disks are in memory. Two things would deadlock
// with this process, so children do them (child_test.go, shell). One is to touch a
// mapped file, which stops a thread where the collector cannot. The other is to
// start a child in a directory of the mount (exec.Cmd.Dir).

// seed returns the seed of a random test, and prints it.
func seed(t *testing.T) uint64 {
	t.Helper()
	return testseed.First(t)
}

// requireFuse skips a test if nothing can be mounted.
func requireFuse(t *testing.T) {
	t.Helper()
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("nothing can be mounted here: %v", err)
	}
	require.NoError(t, f.Close())
}

// requireTools fails if a program is missing that `make setup` installs.
func requireTools(t *testing.T, names ...string) {
	t.Helper()
	for _, n := range names {
		_, err := exec.LookPath(n)
		require.NoError(t, err, "`make setup` installs it")
	}
}

// startCluster runs a cluster until the test ends.
func startCluster(t *testing.T, opts incluster.Options) *incluster.Cluster {
	t.Helper()
	requireFuse(t)
	ctx, stop := context.WithCancel(context.Background())
	if opts.Chunkservers == 0 {
		opts.Chunkservers = 3
	}
	opts.Metadata = 1
	opts.SnapshotEntries, opts.MemTableBytes = 5000, 4<<20 // these tests do not cover how the state is stored
	if os.Getenv("MORAINE_TEST_LOG") != "" {
		opts.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	c, err := incluster.Start(ctx, opts)
	require.NoError(t, err)
	c.Net.SetFaults("*", "*", memnet.Faults{}) // no delays
	t.Cleanup(func() {
		require.NoError(t, c.Stop())
		stop()
	})
	require.NoError(t, c.WaitReady(ctx))
	return c
}

// mounted is a mount of a test.
type mounted struct {
	dir    string
	client *incluster.Client
	fsys   *fuse.Mount
	// end unmounts, and returns the result of Run. It may be called twice.
	end func() error
}

// at is a path below the mount.
func (m *mounted) at(name string) string { return filepath.Join(m.dir, name) }

// mountOptions are those of a test's mount; zeros mean defaults.
type mountOptions struct {
	client client.Config
	// over, if not nil, is put between the client and the network.
	over  func(transport.Dialer) transport.Dialer
	mount fuse.Config
	now   func() time.Time
	// log, if not nil, gets the mount's log too.
	log io.Writer
}

// mount mounts the cluster's root, with a client of its own, until the test ends.
func mount(t *testing.T, c *incluster.Cluster, node string, opts ...mountOptions) *mounted {
	t.Helper()
	var o mountOptions
	if len(opts) > 0 {
		o = opts[0]
	}
	cl, err := c.ClientOver(t.Context(), node, o.client, o.over)
	require.NoError(t, err)
	m := &mounted{dir: t.TempDir(), client: cl}
	o.mount.Dir = m.dir
	o.mount.AllowOther = os.Geteuid() == 0
	to := io.Writer(testWriter{t})
	if o.log != nil {
		to = io.MultiWriter(to, o.log)
	}
	log := slog.New(slog.NewTextHandler(to, nil))
	fsys, err := fuse.New(o.mount, fuse.Deps{Client: cl.Client, Log: log, Now: o.now})
	require.NoError(t, err)
	m.fsys = fsys
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- fsys.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-ended:
		stop()
		require.NoError(t, err)
		t.Fatal("the mount ended before it was ready")
	}
	over := false
	m.end = func() error {
		if over {
			return nil
		}
		over = true
		stop()
		return <-ended
	}
	t.Cleanup(func() {
		require.NoError(t, m.end())
		require.NoError(t, cl.Close())
	})
	return m
}

// testWriter logs to a test.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimRight(string(p), "\n"))
	return len(p), nil
}

// shell runs a script; its first argument is $1.
func shell(t *testing.T, script string, args ...string) string {
	t.Helper()
	out, err := tryShell(script, args...)
	require.NoError(t, err, out)
	return out
}

func tryShell(script string, args ...string) (string, error) {
	cmd := exec.Command("bash", append([]string{"-euo", "pipefail", "-c", script, "bash"}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "HOME=/nonexistent", "LC_ALL=C",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com",
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// randomBytes returns n bytes that do not compress.
func randomBytes(seed uint64, n int) []byte {
	var key [32]byte
	for i := range 8 {
		key[i] = byte(seed >> (8 * i))
	}
	b := make([]byte, n)
	_, _ = rand.NewChaCha8(key).Read(b)
	return b
}

// makeTree makes directories, links, and files of all sizes around those of
// stripes, below dir.
func makeTree(t *testing.T, dir string, s uint64) {
	t.Helper()
	r := rand.New(rand.NewPCG(s, 1))
	sizes := []int{0, 1, 511, 4096, 4097, 64 << 10, 100_000, 256<<10 - 1, 256 << 10, 1<<20 + 12345}
	r.Shuffle(len(sizes), func(i, j int) { sizes[i], sizes[j] = sizes[j], sizes[i] })
	for d := range 4 {
		sub := filepath.Join(dir, fmt.Sprintf("dir %d", d), "below")
		require.NoError(t, os.MkdirAll(sub, 0o755))
		for f := range 5 {
			name := filepath.Join(sub, fmt.Sprintf("file-%d", f))
			data := randomBytes(r.Uint64(), sizes[(5*d+f)%len(sizes)])
			require.NoError(t, os.WriteFile(name, data, os.FileMode(0o600|r.IntN(0o100))))
			when := time.Unix(1_500_000_000+int64(r.IntN(1e8)), int64(r.IntN(1e9)))
			require.NoError(t, os.Chtimes(name, when, when))
		}
		require.NoError(t, os.Symlink("file-1", filepath.Join(sub, "link")))
		require.NoError(t, os.Symlink("nowhere/at all", filepath.Join(sub, "dangling")))
		require.NoError(t, os.Link(filepath.Join(sub, "file-2"), filepath.Join(sub, "second name")))
	}
	// As in an unpacked archive: a directory that its owner may not write to.
	require.NoError(t, os.Chmod(filepath.Join(dir, "dir 3", "below"), 0o555))
}

// listTree describes everything below dir: kind, mode, size, times, digest.
func listTree(t *testing.T, dir string) string {
	t.Helper()
	var out bytes.Buffer
	links := map[uint64]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		fmt.Fprintf(&out, "%q %v", rel, info.Mode())
		st := info.Sys().(*syscall.Stat_t)
		switch {
		case info.Mode().IsRegular():
			first, seen := links[st.Ino]
			if !seen {
				links[st.Ino], first = rel, rel
			}
			fmt.Fprintf(&out, " %d bytes, %d names, as %q, %v, %x", info.Size(), st.Nlink, first, info.ModTime().UnixNano(), digest(t, path))
		case info.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(&out, " -> %q", to)
		}
		fmt.Fprintf(&out, " %d:%d\n", st.Uid, st.Gid)
		return nil
	}))
	return out.String()
}

// digest is that of a file's content, read in pieces of odd sizes.
func digest(t *testing.T, path string) []byte {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	h := sha256.New()
	_, err = io.CopyBuffer(h, struct{ io.Reader }{f}, make([]byte, 77_777))
	require.NoError(t, err)
	return h.Sum(nil)
}

// inode is a number as stat reports it.
type inode = moraine.InodeID

// createOptions are those of a plain file.
var createOptions = client.NodeOptions{Mode: 0o644, Exclusive: true}
