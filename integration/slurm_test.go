package integration_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/morainefs/moraine/internal/devcluster"
)

// TestSlurmScripts: the scripts of deploy/slurm, as Slurm calls them, without Slurm. The prolog starts an
// agent, the task prolog names it, a rank saves through it and ends, and the epilog stops it when the
// step is committed. A step that cannot be committed stays in the memory of the node, for the next start
// of the job.
func TestSlurmScripts(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 1})
	path, err := binary()
	require.NoError(t, err)
	dir, err := os.MkdirTemp("/dev/shm", "moraine-test-")
	require.NoError(t, err)
	mounts := filepath.Join(dir, "mounts")
	settings, err := os.ReadFile("../deploy/slurm/slurm.env")
	require.NoError(t, err)
	replaced := strings.NewReplacer("PATH=/usr/local/bin", "PATH="+filepath.Dir(path), "host1,host2,host3", c.Endpoint(), "/etc/moraine/agent-certs", c.Certs(),
		"64GiB", "48MiB", "50s", "2s", "/run/moraine-arenas", mounts, "/run/moraine", dir, "shm_dir=/dev/shm", "shm_dir="+dir).Replace(string(settings))
	env := filepath.Join(t.TempDir(), "slurm.env")
	require.NoError(t, os.WriteFile(env, []byte(replaced+"\nexport MORAINE_IDENTITY=admin MORAINE_MODE="+c.Mode()+"\n"), 0o600))
	script := func(name string) string {
		t.Helper()
		began := time.Now()
		cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "bash", filepath.Join("../deploy/slurm", name))
		cmd.Env = append(os.Environ(), "MORAINE_SLURM_ENV="+env, "SLURM_JOB_ID=77", fmt.Sprintf("SLURM_JOB_UID=%d", os.Getuid()))
		cmd.WaitDelay = time.Minute // the agent that the prolog leaves behind has no end of its pipes
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		t.Logf("%s took %v", name, time.Since(began).Round(time.Millisecond))
		return strings.TrimSpace(string(out))
	}
	t.Cleanup(func() {
		script("epilog.sh")
		require.NoError(t, os.RemoveAll(dir))
	})
	socket, arenas := filepath.Join(dir, "moraine-job-77.sock"), filepath.Join(mounts, "moraine-job-77")
	require.Empty(t, script("task-prolog.sh"), "there is no agent yet")
	require.Empty(t, script("prolog.sh"))
	require.Empty(t, script("prolog.sh"), "a second call finds the agent")
	t.Cleanup(func() { _ = unix.Unmount(arenas, unix.MNT_DETACH) }) // where the test has failed
	log, err := os.ReadFile(filepath.Join(dir, "moraine-job-77.log"))
	require.NoError(t, err)
	mounted := canMount(t)
	if mounted {
		require.Len(t, mountsOn(t, arenas), 1)
		require.Regexp(t, `^moraine-arenas .*huge=(within_size|advise)`, mountsOn(t, arenas)[0])
		require.Regexp(t, `the arenas have huge pages`, string(log))
	} else {
		arenas = filepath.Join(dir, "moraine-job-77")
	}
	require.Equal(t, "export MORAINE_AGENT="+socket, script("task-prolog.sh"))

	file := filepath.Join(t.TempDir(), "state")
	require.NoError(t, os.WriteFile(file, bytes.Repeat([]byte{7}, 1<<20), 0o600))
	save := func(step string, world string) {
		works(t, append(settingsFor(c), "MORAINE_LAUNCH=one"), "ckpt", "save", "moraine:///runs/s", "--step", step, "--world", world, "--agent", socket, "--level", "local", file)
	}
	committed := func() string { return works(t, settingsFor(c), "ckpt", "ls", "moraine:///runs/s", "--json") }
	save("1", "1")
	require.Empty(t, script("epilog.sh"))
	require.Contains(t, committed(), `"step":1`)
	require.NoFileExists(t, socket)
	require.NoDirExists(t, arenas, "nothing is left on the node")
	require.Empty(t, mountsOn(t, arenas))

	script("prolog.sh")
	save("2", "2") // of the other rank nobody hears
	require.Contains(t, script("epilog.sh"), "left parts of checkpoints in "+arenas)
	require.DirExists(t, arenas)
	require.Equal(t, mounted, len(mountsOn(t, arenas)) == 1, "the mount stays with the parts")
	require.NotContains(t, committed(), `"step":2`)
	script("prolog.sh")
	works(t, append(settingsFor(c), "MORAINE_LAUNCH=one"), "ckpt", "save", "moraine:///runs/s", "--step", "2", "--world", "2", "--rank", "1", file)
	require.Empty(t, script("epilog.sh"), "the step is whole now")
	require.Contains(t, committed(), `"step":2`)
	require.NoDirExists(t, arenas)
	require.Empty(t, mountsOn(t, arenas))

	// Without a directory for mounts, or where none is possible, the arenas are in shm_dir.
	text, err := os.ReadFile(env)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(env, append(text, "arena_dir=\n"...), 0o600))
	require.Empty(t, script("prolog.sh"))
	require.DirExists(t, filepath.Join(dir, "moraine-job-77"))
	require.Empty(t, script("epilog.sh"))
	require.NoDirExists(t, filepath.Join(dir, "moraine-job-77"))
}

// canMount reports whether this process may mount a tmpfs with huge pages.
func canMount(t *testing.T) bool {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("test", dir, "tmpfs", 0, "huge=advise"); err != nil {
		t.Logf("nothing can be mounted here: %v", err)
		return false
	}
	require.NoError(t, unix.Unmount(dir, 0))
	return true
}

// mountsOn returns the lines of the table of mounts for a directory.
func mountsOn(t *testing.T, dir string) (lines []string) {
	t.Helper()
	table, err := os.ReadFile("/proc/self/mounts")
	require.NoError(t, err)
	for line := range strings.Lines(string(table)) {
		if strings.Fields(line)[1] == dir {
			lines = append(lines, line)
		}
	}
	return lines
}
