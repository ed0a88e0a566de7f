package fuse_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/morainefs/moraine/integration/incluster"
	"github.com/stretchr/testify/require"
)

// `cp -a` onto a mount and back changes nothing: content, modes, times, owners,
// links, hard links, extended attributes.
func TestCopyTree(t *testing.T) {
	requireTools(t, "setfattr", "getfattr")
	c := startCluster(t, incluster.Options{Seed: 1})
	m := mount(t, c, "c1")
	src := filepath.Join(t.TempDir(), "src")
	makeTree(t, src, seed(t))
	shell(t, `setfattr -n user.colour -v red "$1/dir 0/below/file-3"; cp -a "$1" "$2"`, src, m.at("copy"))
	want := listTree(t, src)
	require.Equal(t, want, listTree(t, m.at("copy")))
	require.Contains(t, shell(t, `getfattr -d "$1/dir 0/below/file-3"`, m.at("copy")), `user.colour="red"`)

	other := mount(t, c, "c2")
	require.Equal(t, want, listTree(t, other.at("copy")), "through another mount")
	back := filepath.Join(t.TempDir(), "back")
	shell(t, `cp -a "$1" "$2"`, other.at("copy"), back)
	require.Equal(t, want, listTree(t, back))
	shell(t, `rm -rf "$1"; test "$(ls -A "$2")" = ""`, other.at("copy"), m.dir)
}

// A tree that is packed and unpacked on a mount stays the same.
func TestTar(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	m := mount(t, c, "c1")
	src := filepath.Join(t.TempDir(), "src")
	makeTree(t, src, seed(t))
	shell(t, `mkdir "$2/out" "$2/again"
		tar -C "$1" --format=pax -cf "$2/tree.tar" .
		tar -C "$2/out" -xpf "$2/tree.tar"
		tar -C "$2/out" --format=pax -czf "$2/tree.tar.gz" .
		tar -C "$2/again" -xpzf "$2/tree.tar.gz"`, src, m.dir)
	want := listTree(t, src)
	require.Equal(t, want, listTree(t, m.at("out")))
	require.Equal(t, want, listTree(t, m.at("again")))
}

// git works on a mount: clone, commit, repack (which maps files), fsck.
func TestGit(t *testing.T) {
	requireTools(t, "git")
	c := startCluster(t, incluster.Options{Seed: 1})
	m := mount(t, c, "c1")
	src := filepath.Join(t.TempDir(), "src")
	makeTree(t, src, seed(t))
	shell(t, `chmod -R u+rwX "$1"; cd "$1"; git init -q .; git add .; git commit -qm one
		for i in 1 2 3 4 5; do echo $i > number; git add number; git commit -qm "number $i"; done`, src)
	out := shell(t, `git clone -q "file://$1" "$2/clone"; cd "$2/clone"
		git fsck --strict; git status --porcelain; git log --oneline | wc -l
		git gc -q; git fsck --strict
		git checkout -q -b branch HEAD~3; echo more > number; git commit -qam more; git checkout -q -
		git fsck --strict; git status --porcelain`, src, m.dir)
	require.NotContains(t, out, "error")
	require.NotContains(t, out, "missing")
	require.Contains(t, out, "6\n")
	require.Equal(t, shell(t, `cd "$1"; git rev-parse HEAD`, src), shell(t, `cd "$1"; git rev-parse HEAD`, m.at("clone")))
}

// fio finds what it wrote, block by block, in every order and with every method.
func TestFio(t *testing.T) {
	requireTools(t, "fio")
	c := startCluster(t, incluster.Options{Seed: 1})
	m := mount(t, c, "c1")
	for name, args := range map[string]string{
		"sequential":        "--rw=write --bs=1M --size=8M --end_fsync=1",
		"sequential, 24K":   "--rw=write --bs=24k --size=3M --end_fsync=1",
		"random":            "--rw=randwrite --bs=4k --size=1M --end_fsync=1",
		"random, unaligned": "--rw=randwrite --bs=3k-70k --bs_unaligned=1 --size=2M --end_fsync=1",
		"overwritten":       "--rw=randwrite --bs=16k --size=1M --norandommap=1 --io_size=3M --verify_backlog=64",
		"several at once":   "--rw=randwrite --bs=16k --size=1M --numjobs=4 --end_fsync=1",
		"direct":            "--rw=write --bs=256k --size=4M --direct=1",
		"mapped":            "--rw=randwrite --bs=4k --size=1M --ioengine=mmap --end_fsync=1",
	} {
		t.Run(name, func(t *testing.T) {
			dir := m.at(strings.ReplaceAll(name, ", ", "-"))
			require.NoError(t, os.Mkdir(dir, 0o755))
			out := shell(t, fmt.Sprintf(`fio --name=job --directory="$1" --verify=crc32c --verify_fatal=1 --do_verify=1 \
				--fallocate=none --verify_state_save=0 --ioengine=psync --randseed=%d %s`, seed(t), args), dir)
			require.NotContains(t, out, "verify:")
			require.NoError(t, os.RemoveAll(dir))
		})
	}
}
