package integration_test

import (
	"bufio"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/tiers/object"
)

// standalone is a `moraine standalone` that a test started.
type standalone struct {
	cmd   *exec.Cmd
	env   []string // for commands
	addrs []string
	data  string

	mu     sync.Mutex
	stderr bytes.Buffer
}

// Write receives the error output of the process.
func (s *standalone) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stderr.Write(p)
}

func (s *standalone) said() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stderr.String()
}

// standaloneArgs is a command line with ports of its own.
func standaloneArgs(data string, addrs []string) []string {
	return []string{"standalone", "--mode", "crc", "--data", data, "--listen", addrs[0], "--chunk-listen", addrs[1], "--admin-listen", addrs[2],
		"--chunk-admin-listen", addrs[3], "--object-listen", addrs[4], "--s3-listen", addrs[5], "--s3-admin-listen", addrs[6]}
}

const standalonePorts = 7

// startStandalone returns when the process has printed how to use everything.
func startStandalone(t *testing.T, data string, addrs []string) *standalone {
	t.Helper()
	s := &standalone{addrs: addrs, data: data, cmd: command(t, nil, standaloneArgs(data, addrs)...),
		env: []string{"MORAINE_ENDPOINT=" + addrs[0], "MORAINE_CERTS=" + filepath.Join(data, "certs"), "MORAINE_IDENTITY=admin", "MORAINE_MODE=crc"}}
	stdout, err := s.cmd.StdoutPipe()
	require.NoError(t, err)
	s.cmd.Stderr = s
	require.NoError(t, s.cmd.Start())
	var said strings.Builder
	for lines := bufio.NewScanner(stdout); !strings.Contains(said.String(), "--recursive s3://moraine") && lines.Scan(); {
		said.WriteString(lines.Text() + "\n")
	}
	for _, words := range []string{"another shell", "MORAINE_ENDPOINT=" + addrs[0], "S3 is at http://" + addrs[5], "aws s3 ls", s.credentials()} {
		require.Contains(t, said.String(), words, s.said())
	}
	return s
}

func (s *standalone) credentials() string { return filepath.Join(s.data, "s3", "credentials") }

// bucket is a top-level directory, as an S3 client sees it.
func (s *standalone) bucket(t *testing.T, name string) *object.Bucket {
	t.Helper()
	text, err := os.ReadFile(s.credentials())
	require.NoError(t, err)
	key := map[string]string{}
	for line := range strings.Lines(string(text)) {
		k, v, _ := strings.Cut(line, "=")
		key[strings.TrimSpace(k)] = strings.TrimSpace(v)
	}
	b, err := object.New(object.Config{Bucket: name, Endpoint: "http://" + s.addrs[5],
		AccessKey: key["aws_access_key_id"], SecretKey: key["aws_secret_access_key"]}, object.Deps{})
	require.NoError(t, err)
	return b
}

// children returns the pids of its child processes, by kind.
func (s *standalone) children(t *testing.T) map[string]int {
	t.Helper()
	lists, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(s.cmd.Process.Pid), "task", "*", "children"))
	require.NoError(t, err)
	pids := map[string]int{}
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			continue // a thread that has ended
		}
		for _, field := range strings.Fields(string(text)) {
			pid, err := strconv.Atoi(field)
			require.NoError(t, err)
			line, err := os.ReadFile(filepath.Join("/proc", field, "cmdline"))
			if args := strings.Split(string(line), "\x00"); err == nil && len(args) > 1 {
				pids[args[1]] = pid
			}
		}
	}
	return pids
}

// TestStandalone uses everything that `moraine standalone` starts. It kills the
// child processes, ends it by Ctrl-C and by SIGKILL, and finds everything again.
func TestStandalone(t *testing.T) {
	t.Parallel()
	addrs, err := devcluster.FreeAddresses(standalonePorts)
	require.NoError(t, err)
	data := filepath.Join(t.TempDir(), "data")
	s := startStandalone(t, data, addrs)
	backups := filepath.Join(s.data, "metadata", "backups", "metadata-*.backup")
	require.Eventually(t, func() bool { n, err := filepath.Glob(backups); return err == nil && len(n) == 1 }, time.Minute, 100*time.Millisecond,
		"it takes a backup of its metadata at its first start")
	works(t, s.env, "mkdir", "moraine:///data")
	works(t, s.env, "cp", "/proc/self/status", "moraine:///data/file")
	want := []byte(works(t, s.env, "cat", "moraine:///data/file"))
	readByS3 := func(s *standalone) error {
		got := make([]byte, len(want))
		err := s.bucket(t, "data").Get(t.Context(), object.Ref{Key: "file"}, 0, got)
		if err == nil {
			require.Equal(t, want, got)
		}
		return err
	}
	require.NoError(t, readByS3(s))
	st, err := os.Stat(s.credentials())
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), st.Mode().Perm())
	key, err := os.ReadFile(s.credentials())
	require.NoError(t, err)

	other, err := devcluster.FreeAddresses(standalonePorts)
	require.NoError(t, err)
	other[5] = addrs[5]
	requireRefused(t, invoke(t, nil, standaloneArgs(filepath.Join(t.TempDir(), "other"), other)...), 1, "already in use", "--s3-listen", addrs[5])

	before := s.children(t)
	require.Len(t, before, 2, "%v", before)
	for what, pid := range before {
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		require.Eventually(t, func() bool {
			now, ok := s.children(t)[what]
			return ok && now != pid
		}, time.Minute, 10*time.Millisecond, "%s is started again", what)
	}
	require.Equal(t, 2, strings.Count(s.said(), "started again"), s.said())
	require.Eventually(t, func() bool { return readByS3(s) == nil }, time.Minute, 10*time.Millisecond)
	toTheBucketAndBack(t, s)
	requireClosedToOthers(t, data)

	for i, sig := range []os.Signal{os.Interrupt, os.Kill} {
		children := s.children(t)
		require.Len(t, children, 2)
		require.NoError(t, s.cmd.Process.Signal(sig))
		_ = s.cmd.Wait() // its exit code is checked
		if sig == os.Interrupt {
			require.Zero(t, s.cmd.ProcessState.ExitCode(), s.said())
		}
		for what, pid := range children {
			require.Eventually(t, func() bool { return gone(pid) }, time.Minute, 10*time.Millisecond, what)
		}
		if i == 0 {
			s = startStandalone(t, data, addrs)
			require.NoError(t, readByS3(s))
			again, err := os.ReadFile(s.credentials())
			require.NoError(t, err)
			require.Equal(t, key, again)
		}
	}
}

// requireClosedToOthers checks every file below the data of a cluster: the log, the
// state, backups, segments of chunks, objects, keys. Other users of the machine can
// read none of it; only certificates are public.
func requireClosedToOthers(t *testing.T, data string) {
	t.Helper()
	seen := 0
	require.NoError(t, filepath.WalkDir(data, func(name string, d os.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // the cluster continues to run meanwhile
			return nil
		}
		if err != nil || !d.Type().IsRegular() || filepath.Ext(name) == ".crt" {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		seen++
		if err == nil {
			require.Zero(t, info.Mode().Perm()&0o077, "%s has mode %v", name, info.Mode())
		}
		return err
	}))
	require.Greater(t, seen, 20)
}

// toTheBucketAndBack flushes, evicts and stages a checkpoint, named by the link to
// the latest one.
func toTheBucketAndBack(t *testing.T, s *standalone) {
	t.Helper()
	tensors := filepath.Join(t.TempDir(), "model.safetensors")
	header := `{"w":{"dtype":"U8","shape":[1000],"data_offsets":[0,1000]}}`
	file := append([]byte{byte(len(header)), 0, 0, 0, 0, 0, 0, 0}, header...)
	require.NoError(t, os.WriteFile(tensors, append(file, bytes.Repeat([]byte{7}, 1000)...), 0o644))
	works(t, s.env, "ckpt", "save", "moraine:///runs/r", "--step", "1", tensors)
	const latest, part = "moraine:///runs/r/latest", "moraine:///runs/r/latest/rank-00000-of-00001.safetensors"
	want := works(t, s.env, "cat", part)
	requireRefused(t, invoke(t, s.env, "evict", part), 1, "flush it first")
	waited := invoke(t, s.env, "evict", "--wait", part)
	require.Equal(t, 1, waited.code, waited.stdout)
	require.Contains(t, waited.stderr, "flush it first")
	for _, move := range []struct{ name, kept string }{
		{"flush", "on the chunkservers and in the object tier"},
		{"evict", "in the object tier (evicted from the chunkservers)"},
		{"stage", "on the chunkservers and in the object tier"},
	} {
		require.Contains(t, works(t, s.env, move.name, "--wait", "--json", latest), `"files":3,`, move.name) // part, blob and index
		require.Contains(t, works(t, s.env, "stat", part), move.kept, move.name)
		require.Equal(t, want, works(t, s.env, "cat", part), move.name)
	}
}

// TestStandaloneWithoutDoors has no child processes when they are turned off.
func TestStandaloneWithoutDoors(t *testing.T) {
	t.Parallel()
	addrs, err := devcluster.FreeAddresses(standalonePorts)
	require.NoError(t, err)
	data := filepath.Join(t.TempDir(), "data")
	cmd := command(t, nil, append(standaloneArgs(data, addrs), "--no-s3", "--bucket", "s3://elsewhere", "--bucket-endpoint", "http://"+addrs[4])...)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	first, err := bufio.NewReader(stdout).ReadString('\n') // it prints when it serves
	require.NoError(t, err)
	require.Contains(t, first, "another shell")
	require.Empty(t, (&standalone{cmd: cmd}).children(t))
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	_ = cmd.Wait() // its exit code is checked
	require.Zero(t, cmd.ProcessState.ExitCode())
}
