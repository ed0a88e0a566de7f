package chunkserver

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// scsiDisk is what sysfs says of a disk: nothing is sent to it for that.
type scsiDisk struct {
	model     string
	ata       bool // it takes ATA commands
	suspended bool // the kernel has put it to sleep: any command would wake it
}

// findSCSI looks a disk up; not ok where it is none to be asked: of another kind (a virtio
// disk), not a disk, or behind a USB bridge, as some of those hang with what they do not know.
func findSCSI(sys, name string) (d scsiDisk, ok bool) {
	block := filepath.Join(sys, "block", name)
	path, err := filepath.EvalSymlinks(block)
	if !strings.HasPrefix(name, "sd") || err != nil || strings.Contains(path, "/usb") {
		return d, false
	}
	device := filepath.Join(block, "device")
	read := func(name string) string {
		b, _ := os.ReadFile(filepath.Join(device, name))
		return printable(string(b))
	}
	const direct, zoned = "0", "20"
	if !slices.Contains([]string{direct, zoned}, read("type")) {
		return d, false
	}
	// A layer that translates says so by its vendor, or has the page of what it translates.
	_, err = os.Stat(filepath.Join(device, "vpd_pg89"))
	vendor := read("vendor")
	d = scsiDisk{model: read("model"), ata: vendor == "ATA" || err == nil, suspended: read("power/runtime_status") == "suspended"}
	if vendor != "ATA" {
		d.model = strings.TrimSpace(vendor + " " + d.model)
	}
	return d, true
}

// sgHeader is struct sg_io_hdr of scsi/sg.h, the third version of it.
type sgHeader struct {
	id, direction        int32
	cmdLen, senseMost    uint8
	iovecs               uint16
	dataLen              uint32
	data, cmd, sense     unsafe.Pointer
	timeoutMillis, flags uint32
	pack                 int32
	user                 unsafe.Pointer
	status               uint8
	_, _                 uint8
	senseLen             uint8
	host, driver         uint16
	left                 int32 // of dataLen
	_, _                 uint32
}

const (
	sgIoctl     = 0x2285 // SG_IO
	sgNoData    = -1
	sgFromDisk  = -3
	sgSenseMost = 64
	// sgTimeout is the one that reads and writes have by default. When it is over the
	// kernel resets the disk, or more: a shorter one would harm a disk that is just busy.
	sgTimeoutMillis = 30_000
)

// sgDisk is an open disk that takes SCSI commands: a block device does, like the generic one.
type sgDisk struct{ *os.File }

func openSG(path string) (sgDisk, error) {
	// Not waiting for a medium, and never the terminal of anybody.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	return sgDisk{f}, err
}

// do is a scsiDo. The kernel refuses ATA commands of those without CAP_SYS_RAWIO, and the
// ones that are used here of nobody else who may read the disk.
func (f sgDisk) do(cdb, in []byte) (scsiAnswer, error) {
	sense := make([]byte, sgSenseMost)
	// The kernel writes where the header says: not into memory that Go may move.
	var pins runtime.Pinner
	defer pins.Unpin()
	h := &sgHeader{id: 'S', direction: sgNoData, cmdLen: uint8(len(cdb)), senseMost: sgSenseMost, timeoutMillis: sgTimeoutMillis,
		cmd: unsafe.Pointer(&cdb[0]), sense: unsafe.Pointer(&sense[0])}
	pins.Pin(h)
	pins.Pin(&cdb[0])
	pins.Pin(&sense[0])
	if len(in) > 0 {
		pins.Pin(&in[0])
		h.direction, h.dataLen, h.data = sgFromDisk, uint32(len(in)), unsafe.Pointer(&in[0])
	}
	// Its Fd would make it one that waits: the connection leaves it as it is.
	conn, err := f.SyscallConn()
	if err != nil {
		return scsiAnswer{}, err
	}
	var errno unix.Errno
	err = conn.Control(func(fd uintptr) {
		_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, sgIoctl, uintptr(unsafe.Pointer(h)))
	})
	if err != nil {
		return scsiAnswer{}, err
	}
	if errno != 0 {
		return scsiAnswer{}, errno
	}
	return h.answer(sense)
}

// answer reads what the kernel has filled in.
func (h *sgHeader) answer(sense []byte) (scsiAnswer, error) {
	const (
		good, check = 0, 2     // status: done; and there is sense data
		hasSense    = 8        // of driver, in kernels before 5.14
		drivers     = 1<<4 - 1 // above are suggestions
	)
	driver := h.driver & drivers
	if h.host != 0 || driver != 0 && driver != hasSense || h.status != good && h.status != check {
		return scsiAnswer{}, fmt.Errorf("the disk did not get to answering: host status %#x, driver %#x, status %#x", h.host, h.driver, h.status)
	}
	return scsiAnswer{
		n:     int(min(max(int64(h.dataLen)-int64(h.left), 0), int64(h.dataLen))),
		check: h.status == check,
		sense: sense[:min(int(h.senseLen), len(sense))],
	}, nil
}
