package chunkserver

import (
	"fmt"
	"os"
	"path/filepath"
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
	cdw                  [6]uint32 // 10 to 15
	timeoutMillis        uint32
	result               uint32
}

const (
	nvmeAdminIoctl = 0xc0484e41 // NVME_IOCTL_ADMIN_CMD
	nvmeGetLogPage = 0x02
	nvmeSmartPage  = 0x02
	nvmeEverywhere = 0xffffffff
)

// diskHealth asks the disk that a directory lies on how it is: nil where there is
// no single disk that tells, or the process may not ask it.
func diskHealth(dir string) *wire.DiskHealth {
	name := blockDevice(dir)
	if !strings.HasPrefix(name, "nvme") {
		return nil
	}
	f, err := os.Open("/dev/" + name)
	if err != nil {
		return nil
	}
	defer f.Close()
	// The kernel writes where the address says: not into memory that Go may move.
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

// blockDevice is the name of the whole disk below a directory, as in /sys/block;
// empty where there is none.
func blockDevice(dir string) string {
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil {
		return ""
	}
	path, err := filepath.EvalSymlinks(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)))
	if err != nil {
		return ""
	}
	if _, err := os.Stat(filepath.Join(path, "partition")); err == nil {
		path = filepath.Dir(path)
	}
	return filepath.Base(path)
}
