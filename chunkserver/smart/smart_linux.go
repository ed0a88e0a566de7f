package smart

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/morainefs/moraine/transport/wire"
)

// nvmeAdmin is struct nvme_admin_cmd of linux/nvme_ioctl.h.
type nvmeAdmin struct {
	opcode, flags        uint8
	_                    uint16
	nsid                 uint32
	_, _                 uint32
	metadata, addr       uint64
	metadataLen, dataLen uint32
	cdw                  [6]uint32 // cdw10 to cdw15
	timeoutMillis        uint32
	result               uint32
}

const (
	nvmeAdminIoctl = 0xc0484e41 // NVME_IOCTL_ADMIN_CMD
	nvmeGetLogPage = 0x02
	nvmeSmartPage  = 0x02
	nvmeEverywhere = 0xffffffff
)

// Read returns the health of the NVMe disks below a directory. It returns nil if
// none of them reports any, or if the process lacks permission. It may take as long
// as the disks do.
func Read(dir string) *wire.DiskHealth {
	var all []*wire.DiskHealth
	for _, name := range distinct("/sys", blockDevices("/sys", dir)) {
		if h := readNVMe(name); h != nil {
			all = append(all, h)
		}
	}
	return worst(all)
}

// distinct removes the additional paths to a multipath disk, by its worldwide name,
// so that its errors count once.
func distinct(sys string, names []string) []string {
	seen := map[string]bool{}
	return slices.DeleteFunc(names, func(name string) bool {
		wwid, _ := os.ReadFile(filepath.Join(sys, "block", name, "device", "wwid"))
		if len(wwid) == 0 {
			wwid, _ = os.ReadFile(filepath.Join(sys, "block", name, "wwid"))
		}
		again := len(wwid) > 0 && seen[string(wwid)]
		seen[string(wwid)] = true
		return again
	})
}

// readNVMe reads the log page of one disk, by its name in sysfs. It returns nil if
// it is no NVMe disk.
func readNVMe(name string) *wire.DiskHealth {
	if !strings.HasPrefix(name, "nvme") {
		return nil
	}
	f, err := os.Open("/dev/" + name)
	if err != nil {
		return nil
	}
	defer f.Close()
	// The kernel writes to this address, so it must not be memory that Go may move.
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil
	}
	defer unix.Munmap(page) //nolint:errcheck // there is nothing to do about it
	cmd := nvmeAdmin{opcode: nvmeGetLogPage, nsid: nvmeEverywhere, addr: uint64(uintptr(unsafe.Pointer(&page[0]))), dataLen: nvmeLogSize}
	cmd.cdw[0] = nvmeSmartPage | (nvmeLogSize/4-1)<<16
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), nvmeAdminIoctl, uintptr(unsafe.Pointer(&cmd)))
	if errno != 0 {
		return nil
	}
	model, _ := os.ReadFile("/sys/block/" + name + "/device/model")
	return decodeNVMe(string(model), page[:nvmeLogSize])
}

// blockDevices are the names of the whole disks below a directory, as in
// /sys/block. It includes the disks below a volume, such as an encrypted volume or
// an array.
func blockDevices(sys, dir string) []string {
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil {
		return nil
	}
	path, err := filepath.EvalSymlinks(fmt.Sprintf("%s/dev/block/%d:%d", sys, unix.Major(st.Dev), unix.Minor(st.Dev)))
	if err != nil {
		return nil
	}
	return wholeDisks(path, 0)
}

// wholeDisks descends from a block device, by its path in sysfs, to the disks below
// it.
func wholeDisks(path string, depth int) (names []string) {
	const deepest = 8 // an array of encrypted volumes of arrays is not half as deep
	if _, err := os.Stat(filepath.Join(path, "partition")); err == nil {
		path = filepath.Dir(path)
	}
	parts, _ := filepath.Glob(filepath.Join(path, "slaves", "*"))
	if len(parts) == 0 || depth == deepest {
		return []string{filepath.Base(path)}
	}
	for _, p := range parts {
		if real, err := filepath.EvalSymlinks(p); err == nil {
			names = append(names, wholeDisks(real, depth+1)...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
