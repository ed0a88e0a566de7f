package integration_test

import (
	"bytes"
	"context"
	encoding "encoding/binary"
	"hash/crc32"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/transport/pki"
	"github.com/stretchr/testify/require"
)

// outcome is the result of a command.
type outcome struct {
	stdout, stderr string
	code           int
}

// command prepares the binary with args, without settings other than those in env.
func command(t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	path, err := binary()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // a command that hangs fails, with its output
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, path, args...)
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "MORAINE_") {
			cmd.Env = append(cmd.Env, e)
		}
	}
	cmd.Env = append(cmd.Env, env...)
	return cmd
}

// finish runs a prepared command to its end.
func finish(t *testing.T, cmd *exec.Cmd) outcome {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	if cmd.ProcessState == nil {
		require.NoError(t, err)
	}
	return outcome{out.String(), errOut.String(), cmd.ProcessState.ExitCode()}
}

func invoke(t *testing.T, env []string, args ...string) outcome {
	t.Helper()
	return finish(t, command(t, env, args...))
}

// settingsFor is the environment of an admin of c.
func settingsFor(c *devcluster.Cluster) []string {
	return []string{"MORAINE_ENDPOINT=" + c.Endpoint(), "MORAINE_CERTS=" + c.Certs(), "MORAINE_IDENTITY=admin", "MORAINE_MODE=" + c.Mode()}
}

// works runs a command that must succeed, and returns its output.
func works(t *testing.T, env []string, args ...string) string {
	t.Helper()
	o := invoke(t, env, args...)
	require.Zero(t, o.code, "%v: %s", args, o.stderr)
	return o.stdout
}

// requireRefused checks o against the form of every refusal: one line on standard
// error, which has each of the words, nothing else, and the exit code.
func requireRefused(t *testing.T, o outcome, code int, words ...string) {
	t.Helper()
	require.Equal(t, code, o.code, "%s%s", o.stdout, o.stderr)
	require.Truef(t, strings.HasPrefix(o.stderr, "moraine: ") && strings.Count(o.stderr, "\n") == 1 && strings.HasSuffix(o.stderr, "\n"),
		"not one line: %q", o.stderr)
	for _, w := range words {
		require.Contains(t, o.stderr, w)
	}
	t.Logf("exit %d: %s", o.code, strings.TrimSpace(o.stderr))
}

// contents reads a whole tree, to detect changes in it. A lock file, which is
// empty, may come and go.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	tree := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.EqualFold(d.Name(), "lock") {
			return err
		}
		info, err := d.Info()
		if err != nil || info.Size() > 1<<20 { // a ballast, whose bytes have no meaning
			return err
		}
		data, err := os.ReadFile(path)
		tree[path] = string(data)
		return err
	})
	if os.IsNotExist(err) {
		return nil
	}
	require.NoError(t, err)
	return tree
}

// badServer is a server that must refuse to run.
type badServer struct {
	name  string
	args  []string // after --listen, --admin-listen, --certs and --identity, which they may repeat
	code  int
	words []string
	dir   string // must not change
}

func runBadServers(t *testing.T, env []string, role string, certs, identity string, servers []badServer) {
	t.Helper()
	for _, s := range servers {
		t.Run(role+"/"+s.name, func(t *testing.T) {
			addrs, err := devcluster.FreeAddresses(2)
			require.NoError(t, err)
			args := append([]string{role, "--listen", addrs[0], "--admin-listen", addrs[1], "--certs", certs, "--identity", identity}, s.args...)
			before := contents(t, s.dir)
			requireRefused(t, invoke(t, env, args...), s.code, s.words...)
			require.Equal(t, before, contents(t, s.dir))
		})
	}
}

// certificates makes a directory with an authority of another cluster, and one of
// c's whose certificate for node has expired.
func certificates(t *testing.T, c *devcluster.Cluster, role pki.Role, node string) (foreign, expired, open string) {
	t.Helper()
	foreign, expired, open = t.TempDir(), t.TempDir(), t.TempDir()
	require.NoError(t, devcluster.MakeCertificates(foreign, 1, 1))
	require.NoError(t, os.Rename(filepath.Join(foreign, string(node[0])+"1.crt"), filepath.Join(foreign, node+".crt")))
	require.NoError(t, os.Rename(filepath.Join(foreign, string(node[0])+"1.key"), filepath.Join(foreign, node+".key")))
	ca, err := pki.LoadCA(c.Certs())
	require.NoError(t, err)
	cert, err := ca.Issue(pki.Request{Role: role, Node: node, Now: time.Now().Add(-2 * time.Second), TTL: time.Second})
	require.NoError(t, err)
	require.NoError(t, cert.Save(expired, node))
	require.NoError(t, os.CopyFS(open, os.DirFS(c.Certs())))
	require.NoError(t, cert.Save(open, node))
	require.NoError(t, os.Chmod(filepath.Join(open, node+".key"), 0o644))
	return foreign, expired, open
}

// bump turns the file into one of the newer format: version 2 at byte 8, under a
// correct checksum, which is at sumAt and covers the bytes before it.
func bump(t *testing.T, name string, sumAt func(size int) int) {
	t.Helper()
	data, err := os.ReadFile(name)
	require.NoError(t, err)
	encoding.LittleEndian.PutUint16(data[8:], 99)
	at := sumAt(len(data))
	encoding.LittleEndian.PutUint32(data[at:], crc32.Checksum(data[:at], crc32.MakeTable(crc32.Castagnoli)))
	require.NoError(t, os.WriteFile(name, data, 0o644))
}

// foreignDir is a directory with foreign files.
func foreignDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "thesis.txt"), []byte("mine"), 0o644))
	return dir
}

// TestServersRefuseBadInput starts servers with every kind of mistake. Then the
// servers whose directories were used start again, and nothing is lost.
func TestServersRefuseBadInput(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 2})
	env := settingsFor(c)
	works(t, env, "cp", "/proc/self/status", "moraine:///kept")
	held, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer held.Close()
	taken := held.Addr().String()
	fresh := func() string { return filepath.Join(t.TempDir(), "data") }

	n2 := c.Node("n2")
	device := filepath.Join(n2.Dir, "device0")
	foreign, expired, open := certificates(t, c, pki.RoleChunkserver, "n2")
	chunks := func(name, dir string, code int, words []string, args ...string) badServer {
		return badServer{name, append([]string{"--device", dir}, args...), code, words, dir}
	}
	runBadServers(t, env, "chunkserver", c.Certs(), "n2", []badServer{
		chunks("in use", device, 1, []string{device, "another process uses this directory"}),
	})
	require.NoError(t, n2.Stop(10*time.Second))
	newer := filepath.Join(t.TempDir(), "device")
	require.NoError(t, os.CopyFS(newer, os.DirFS(device)))
	bump(t, filepath.Join(newer, "device"), func(int) int { return 124 })
	otherDevice := filepath.Join(t.TempDir(), "device")
	require.NoError(t, os.CopyFS(otherDevice, os.DirFS(device)))
	runBadServers(t, env, "chunkserver", c.Certs(), "n2", []badServer{
		chunks("wrong flag", device, 2, []string{"unknown flag: --foo", "--help"}, "--foo"),
		chunks("port in use", fresh(), 1, []string{taken, "already in use", "choose another"}, "--listen", taken),
		chunks("second port in use", fresh(), 1, []string{"--admin-listen", taken, "already in use"}, "--admin-listen", taken),
		chunks("no certificates", device, 1, []string{"/nonexistent", "moraine cert"}, "--certs", "/nonexistent"),
		chunks("certificate of a client", device, 2, []string{"client client", "--identity"}, "--identity", "client", "--id", "n2"),
		chunks("certificate of another node", device, 2, []string{"chunkserver n1", "--identity"}, "--identity", "n1", "--id", "n2"),
		chunks("expired certificate", device, 1, []string{"expired on", "moraine cert renew DIR n2"}, "--certs", expired),
		chunks("key open to all", device, 1, []string{"n2.key", "chmod 600"}, "--certs", open),
		chunks("certificate of another cluster", device, 1, []string{"not issued by an authority", "same cluster"}, "--certs", foreign),
		chunks("device of a newer format", newer, 1, []string{"newer format", "release"}),
		chunks("no directory", "/proc/version", 2, []string{"--device /proc/version", "name a directory"}),
		chunks("directory of something else", foreignDir(t), 1, []string{"thesis.txt", "name an empty directory"}),
		chunks("mistyped directory", fresh(), 1, []string{"directory holds no device", "moraine device format"}),
	})
	require.NoError(t, n2.Start())
	require.NoError(t, n2.Ready(t.Context()))

	t.Run("chunkserver/device of another cluster", func(t *testing.T) {
		other := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 1})
		runBadServers(t, settingsFor(other), "chunkserver", other.Certs(), "n1", []badServer{
			chunks("used", otherDevice, 1, []string{otherDevice, "wrong cluster", "belongs to cluster"})})
	})

	m1 := c.Node("m1")
	data := filepath.Join(m1.Dir, "data")
	foreign, expired, open = certificates(t, c, pki.RoleMetadata, "m1")
	meta := func(name, dir string, code int, words []string, args ...string) badServer {
		return badServer{name, append([]string{"--data", dir}, args...), code, words, dir}
	}
	runBadServers(t, env, "metadata", c.Certs(), "m1", []badServer{
		{"in use", []string{"--data", data}, 1, []string{data, "another process uses this directory"}, ""},
	})
	require.NoError(t, m1.Stop(10*time.Second))
	newer = filepath.Join(t.TempDir(), "data")
	require.NoError(t, os.CopyFS(newer, os.DirFS(data)))
	bump(t, filepath.Join(newer, "IDENTITY"), func(size int) int { return size - 4 })
	runBadServers(t, env, "metadata", c.Certs(), "m1", []badServer{
		meta("wrong flag", data, 2, []string{"unknown flag: --foo", "--help"}, "--foo"),
		meta("port in use", fresh(), 1, []string{taken, "already in use", "choose another"}, "--bootstrap", "--listen", taken),
		meta("second port in use", fresh(), 1, []string{"--admin-listen", taken, "already in use"}, "--bootstrap", "--admin-listen", taken),
		meta("empty, and not the first start", fresh(), 2, []string{"--bootstrap", "lost its disk"}),
		meta("no certificates", data, 1, []string{"/nonexistent", "moraine cert"}, "--certs", "/nonexistent"),
		meta("certificate of a client", data, 2, []string{"client client", "--identity"}, "--identity", "client", "--id", "m1"),
		meta("expired certificate", data, 1, []string{"expired on", "moraine cert renew DIR m1"}, "--certs", expired),
		meta("key open to all", data, 1, []string{"m1.key", "chmod 600"}, "--certs", open),
		meta("directory of another cluster", data, 1, []string{data, "wrong cluster", "belongs to cluster"}, "--certs", foreign),
		meta("directory of a newer format", newer, 1, []string{"newer format", "release"}),
		meta("no directory", "/proc/version", 2, []string{"--data /proc/version", "name a directory"}),
		meta("directory of something else", foreignDir(t), 1, []string{"thesis.txt", "name an empty directory"}, "--bootstrap"),
		meta("not among the peers", fresh(), 2, []string{"--peers", "m1"}, "--peers", "m2=127.0.0.1:1"),
	})
	require.NoError(t, m1.Start())
	require.NoError(t, m1.Ready(t.Context()))
	require.Contains(t, works(t, env, "cat", "moraine:///kept"), "Name:")
}

// TestCommandsRefuseBadInput uses a cluster with every kind of mistake, from the
// command line.
func TestCommandsRefuseBadInput(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 1})
	env := settingsFor(c)
	works(t, env, "cp", "/proc/self/status", "moraine:///file")
	works(t, env, "mkdir", "moraine:///dir")
	foreign, expired, open := certificates(t, c, pki.RoleClient, "me")
	for _, bad := range []struct {
		code  int
		words []string
		args  []string
	}{
		{1, []string{"/nope", "not found"}, []string{"ls", "moraine:///nope"}},
		{1, []string{"/nope", "not found"}, []string{"rm", "moraine:///nope"}},
		{1, []string{"/nope", "not found"}, []string{"rm", "-r", "moraine:///nope"}},
		{2, []string{"nohost", "HOST:PORT"}, []string{"metadata", "add", "m9=nohost"}},
		{1, []string{"/file", "already exists"}, []string{"mkdir", "moraine:///file"}},
		{2, []string{"-r"}, []string{"rm", "moraine:///dir"}},
		{2, []string{"-r"}, []string{"cp", "moraine:///dir", t.TempDir()}},
		{1, []string{"make it first"}, []string{"cp", "moraine:///file", "/nonexistent/file"}},
		{1, []string{"is a directory"}, []string{"cat", "moraine:///dir"}},
		{1, []string{"name a run"}, []string{"ckpt", "ls", "moraine:///file"}},
		{1, []string{"not found"}, []string{"ckpt", "verify", "moraine:///nope"}},
		{1, []string{"expired on", "moraine cert renew"}, []string{"ls", "--certs", expired, "--identity", "me", "moraine:///"}},
		{1, []string{"me.key", "chmod 600"}, []string{"ls", "--certs", open, "--identity", "me", "moraine:///"}},
		{1, []string{"not issued by an authority", "same cluster"}, []string{"ls", "--certs", foreign, "--identity", "admin", "moraine:///"}},
	} {
		requireRefused(t, invoke(t, env, bad.args...), bad.code, bad.words...)
	}
}
