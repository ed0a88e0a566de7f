package raftstore_test

import (
	"encoding/binary"
	"hash/crc32"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/vfs"
)

func readAll(t testing.TB, fsys vfs.FS, name string) []byte {
	t.Helper()
	f, err := fsys.Open(name, vfs.Read)
	require.NoError(t, err)
	defer f.Close()
	size, err := f.Size()
	require.NoError(t, err)
	p := make([]byte, size)
	n, _ := f.ReadAt(p, 0)
	require.Equal(t, len(p), n)
	return p
}

func writeAll(t testing.TB, fsys vfs.FS, name string, p []byte) {
	t.Helper()
	f, err := fsys.Open(name, vfs.Create|vfs.Truncate)
	require.NoError(t, err)
	defer f.Close()
	_, err = f.WriteAt(p, 0)
	require.NoError(t, err)
}

// fixSum makes the checksum at the end of an envelope right again.
func fixSum(p []byte) {
	sum := crc32.Checksum(p[:len(p)-4], crc32.MakeTable(crc32.Castagnoli))
	binary.LittleEndian.PutUint32(p[len(p)-4:], sum)
}
