package smart

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

// Decoding a disk's log page follows the specification.
func TestDiskHealth(t *testing.T) {
	page := make([]byte, nvmeLogSize)
	require.Nil(t, decodeNVMe("", page), "a disk with nothing to say")
	require.Nil(t, decodeNVMe("", page[:100]))
	binary.LittleEndian.PutUint16(page[1:], 273+41)
	page[3], page[4], page[5] = 100, 10, 7
	binary.LittleEndian.PutUint64(page[128:], 12_000)
	binary.LittleEndian.PutUint64(page[160:], 2)
	h := decodeNVMe("  disk of a maker \n", page)
	require.Equal(t, "disk of a maker", h.Model)
	require.EqualValues(t, 41, h.Celsius)
	require.EqualValues(t, 7, h.WornPercent)
	require.EqualValues(t, 100, h.SparePercent)
	require.EqualValues(t, 12_000, h.PowerOnHours)
	require.EqualValues(t, 2, h.MediaErrors)
	require.False(t, h.Failing)
	page[0] = 1 << 1
	h = decodeNVMe("", page)
	require.False(t, h.Failing, "heat passes")
	require.Contains(t, h.Text, "its temperature is out of range")
	page[0] = 1<<2 | 1<<3
	h = decodeNVMe("", page)
	require.True(t, h.Failing)
	require.Contains(t, h.Text, "read-only")
	page[0], page[3] = 0, 5
	require.True(t, decodeNVMe("", page).Failing, "fewer spare blocks than its own threshold")
}
