package chunkserver

import (
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// sysfsDisk makes a disk in a sysfs that looks as the kernel's does.
func sysfsDisk(t *testing.T, sys, bus, name string, device map[string]string) {
	t.Helper()
	at := filepath.Join(sys, "devices", bus, "block", name)
	for file, text := range device {
		p := filepath.Join(at, "device", file)
		require.NoError(t, os.MkdirAll(filepath.Dir(p), 0o755))
		require.NoError(t, os.WriteFile(p, []byte(text+"\n"), 0o644))
	}
	require.NoError(t, os.MkdirAll(at, 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(sys, "block"), 0o755))
	require.NoError(t, os.Symlink(at, filepath.Join(sys, "block", name)))
}

// TestWhichDisksAreAsked goes by what sysfs says of them.
func TestWhichDisksAreAsked(t *testing.T) {
	sys := t.TempDir()
	for name, row := range map[string]struct {
		bus    string
		device map[string]string
		want   scsiDisk
		ok     bool
	}{
		"sda": {"pci0/ata1", map[string]string{"type": "0", "vendor": "ATA     ", "model": "MAKER HD-1      ", "power/runtime_status": "active"},
			scsiDisk{model: "MAKER HD-1", ata: true}, true},
		"sdb": {"pci0/ata2", map[string]string{"type": "0", "vendor": "ATA", "model": "b", "power/runtime_status": "suspended"},
			scsiDisk{model: "b", ata: true, suspended: true}, true},
		"sdc": {"pci0/host3", map[string]string{"type": "0", "vendor": "MAKER   ", "model": "SAS-1 "}, scsiDisk{model: "MAKER SAS-1"}, true},
		"sdd": {"pci0/host3", map[string]string{"type": "0", "vendor": "M", "model": "d", "vpd_pg89": "-"}, scsiDisk{model: "M d", ata: true}, true},
		"sde": {"pci0/usb1/1-1", map[string]string{"type": "0", "vendor": "ATA", "model": "e"}, scsiDisk{}, false},
		"sdf": {"pci0/host4", map[string]string{"type": "5", "vendor": "MAKER", "model": "f"}, scsiDisk{}, false},
		"vda": {"pci0/virtio1", nil, scsiDisk{}, false},
	} {
		sysfsDisk(t, sys, row.bus, name, row.device)
		d, ok := findSCSI(sys, name)
		require.Equal(t, row.ok, ok, name)
		require.Equal(t, row.want, d, name)
	}
	_, ok := findSCSI(sys, "sdz")
	require.False(t, ok)

	// Asked are those that are there, may be opened, and are awake.
	dev := t.TempDir()
	for _, name := range []string{"sdb", "sdc", "sdd", "sde", "vda"} {
		require.NoError(t, os.WriteFile(filepath.Join(dev, name), make([]byte, 4096), 0o644))
	}
	for name, want := range map[string]error{"sda": nil, "sdb": errAsleep, "sdc": unix.ENOTTY, "sdd": unix.ENOTTY, "sde": nil, "vda": nil} {
		h, err := oneHealth(sys, dev, name)
		require.Nil(t, h, name)
		require.ErrorIs(t, err, want, name) // the files here take no SCSI commands
	}
}

// TestADiskWithTwoPathsCountsOnce: by its worldwide name.
func TestADiskWithTwoPathsCountsOnce(t *testing.T) {
	sys := t.TempDir()
	for name, wwid := range map[string]string{"sda": "naa.1", "sdb": "naa.2", "sdc": "naa.1"} {
		sysfsDisk(t, sys, "pci0/"+name, name, map[string]string{"wwid": wwid})
	}
	sysfsDisk(t, sys, "pci0/virtio1", "vda", nil)
	sysfsDisk(t, sys, "pci0/virtio2", "vdb", nil)
	require.Equal(t, []string{"sda", "sdb", "vda", "vdb"}, distinct(sys, []string{"sda", "sdb", "sdc", "vda", "vdb"}))
}

// TestTheKernelsHeader: as scsi/sg.h has it on 64 bits.
func TestTheKernelsHeader(t *testing.T) {
	var h sgHeader
	require.EqualValues(t, 88, unsafe.Sizeof(h))
	for at, want := range map[uintptr]uintptr{
		unsafe.Offsetof(h.dataLen): 12, unsafe.Offsetof(h.data): 16, unsafe.Offsetof(h.cmd): 24, unsafe.Offsetof(h.sense): 32,
		unsafe.Offsetof(h.timeoutMillis): 40, unsafe.Offsetof(h.user): 56, unsafe.Offsetof(h.status): 64, unsafe.Offsetof(h.senseLen): 67,
		unsafe.Offsetof(h.host): 68, unsafe.Offsetof(h.driver): 70, unsafe.Offsetof(h.left): 72,
	} {
		require.Equal(t, want, at)
	}
	sense := make([]byte, sgSenseMost)
	for name, row := range map[string]struct {
		h    sgHeader
		ok   bool
		want scsiAnswer
	}{
		"done":               {sgHeader{dataLen: 512, left: 100}, true, scsiAnswer{n: 412, sense: sense[:0]}},
		"more left than was": {sgHeader{dataLen: 512, left: 600}, true, scsiAnswer{n: 0, sense: sense[:0]}},
		"less than nothing":  {sgHeader{dataLen: 512, left: -600}, true, scsiAnswer{n: 512, sense: sense[:0]}},
		"refused":            {sgHeader{status: 2, driver: 8, senseLen: 18}, true, scsiAnswer{check: true, sense: sense[:18]}},
		"sense too long":     {sgHeader{status: 2, senseLen: 255}, true, scsiAnswer{check: true, sense: sense}},
		"no such disk":       {sgHeader{host: 1}, false, scsiAnswer{}},
		"timed out":          {sgHeader{driver: 6}, false, scsiAnswer{}},
		"busy":               {sgHeader{status: 8}, false, scsiAnswer{}},
	} {
		a, err := row.h.answer(sense)
		require.Equal(t, row.ok, err == nil, name)
		require.Equal(t, row.want, a, name)
	}
	require.True(t, scsiAnswer{check: true}.refused(), "it does not say why")
}
