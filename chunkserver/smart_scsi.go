package chunkserver

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/morainefs/moraine/transport/wire"
)

// What is here and in smart_ata.go is written by the standards: SPC-4 (sense data, log
// pages), SBC-4 (log pages of disks), SAT-3 (ATA commands within SCSI ones), ACS-4 (what ATA
// disks answer). It was tested on answers made up by them, and has not met a real SAS or SATA
// disk yet: what makers do that no standard has (attributes, odd HBAs) may read wrong. An
// answer that is too short or not what was asked for counts as none.

// scsiDo has a disk carry out one command; what it sends comes into in. An error says that
// nothing is known of the command: no more are sent then, as each may take as long again.
type scsiDo func(cdb, in []byte) (scsiAnswer, error)

// scsiAnswer is what became of a command.
type scsiAnswer struct {
	n     int    // bytes of in that are filled
	check bool   // there is more to say than that it is done
	sense []byte // that: why it was refused, or what was asked for; may be missing
}

// errAsleep says that a disk sleeps, and was not woken to be asked.
var errAsleep = errors.New("the disk sleeps")

// Sense keys of SPC-4, 4.5.6.
const (
	senseNone      = 0
	senseRecovered = 1
	senseNotReady  = 2
)

// refused reports whether the disk did not do as it was told.
func (a scsiAnswer) refused() bool {
	key, _, _, ok := readSense(a.sense)
	return a.check && !(ok && (key == senseNone || key == senseRecovered))
}

// readSense reads what both formats of sense data (SPC-4, 4.5.2 and 4.5.3) have; not ok where
// it is neither.
func readSense(s []byte) (key, code, qualifier byte, ok bool) {
	if len(s) < 4 {
		return 0, 0, 0, false
	}
	switch s[0] & 0x7f {
	case 0x70, 0x71:
		if len(s) >= 14 {
			code, qualifier = s[12], s[13]
		}
		return s[2] & 0xf, code, qualifier, true
	case 0x72, 0x73:
		return s[1] & 0xf, s[2], s[3], true
	}
	return 0, 0, 0, false
}

const (
	scsiRequestSense = 0x03
	scsiLogSense     = 0x4d
	scsiLogSize      = 512 // read of a page at most: what is wanted stands at its beginning
)

// Log pages.
const (
	scsiLogPages      = 0x00 // which there are
	scsiLogWrites     = 0x02 // errors, by what the disk did
	scsiLogReads      = 0x03
	scsiLogVerifies   = 0x05
	scsiLogHeat       = 0x0d
	scsiLogSolidState = 0x11
	scsiLogBackground = 0x15 // scans of its own
	scsiLogExceptions = 0x2f // what it has to say of itself: SMART
)

var scsiLogsWanted = []byte{scsiLogExceptions, scsiLogHeat, scsiLogSolidState, scsiLogReads, scsiLogWrites, scsiLogVerifies, scsiLogBackground}

// askSCSI asks a SCSI disk how it is: nil where it does not tell.
func askSCSI(do scsiDo, model string) (*wire.DiskHealth, error) {
	// REQUEST SENSE is answered by a sleeping disk as by another, without waking it.
	sense := make([]byte, 252)
	a, err := do([]byte{scsiRequestSense, 0, 0, 0, byte(len(sense)), 0}, sense)
	if err != nil {
		return nil, err
	}
	if scsiAsleep(sense[:a.n]) {
		return nil, errAsleep
	}
	there, err := scsiLog(do, scsiLogPages)
	if err != nil || !slices.Contains(there, scsiLogExceptions) {
		return nil, err
	}
	pages := map[byte][]byte{}
	for _, page := range scsiLogsWanted {
		if !slices.Contains(there, page) {
			continue
		}
		if pages[page], err = scsiLog(do, page); err != nil {
			return nil, err
		}
	}
	return decodeSCSI(model, pages), nil
}

// scsiAsleep reports whether an answer to REQUEST SENSE is that of a disk that is stopped or
// in standby (SPC-4, annex F). One that is idle answers, and stays as it is.
func scsiAsleep(s []byte) bool {
	key, code, qualifier, ok := readSense(s)
	if !ok {
		return false
	}
	const lowPower = 0x5e
	standby := []byte{0x00, 0x02, 0x04, 0x09, 0x0a, 0x43}
	return key == senseNotReady || code == lowPower && slices.Contains(standby, qualifier)
}

// scsiLog reads what a log page holds, without its head; nil where there is no such page.
func scsiLog(do scsiDo, page byte) ([]byte, error) {
	in := make([]byte, scsiLogSize)
	cdb := make([]byte, 10)
	cdb[0], cdb[2] = scsiLogSense, 1<<6|page // the values as they are now
	binary.BigEndian.PutUint16(cdb[7:], scsiLogSize)
	a, err := do(cdb, in)
	if err != nil || a.refused() {
		return nil, err
	}
	const head, subpages = 4, 0x40
	in = in[:a.n]
	if len(in) < head || in[0]&0x3f != page || in[0]&subpages != 0 {
		return nil, nil
	}
	return in[head:min(len(in), head+int(binary.BigEndian.Uint16(in[2:])))], nil
}

// logValues are the whole values of a log page, by their codes.
func logValues(page []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		const head = 4
		for len(page) >= head {
			end := head + int(page[3])
			if end > len(page) || !yield(binary.BigEndian.Uint16(page), page[head:end]) {
				return
			}
			page = page[end:]
		}
	}
}

// logValue is one value of a page, of so many bytes at least; nil where it is not there.
func logValue(page []byte, code uint16, least int) []byte {
	for c, v := range logValues(page) {
		if c == code && len(v) >= least {
			return v
		}
	}
	return nil
}

// decodeSCSI reads the log pages of a disk; nil where they say nothing.
func decodeSCSI(model string, pages map[byte][]byte) *wire.DiskHealth {
	exceptions := logValue(pages[scsiLogExceptions], 0, 2)
	if exceptions == nil {
		return nil
	}
	h := &wire.DiskHealth{Model: model, SparePercent: spareUntold, WearUntold: true}
	h.Text, h.Failing = scsiException(exceptions[0], exceptions[1])
	told := h.Text != ""
	h.Celsius = scsiCelsius(logValue(pages[scsiLogHeat], 0, 2), exceptions)
	told = told || h.Celsius != 0
	if v := logValue(pages[scsiLogSolidState], 1, 4); v != nil {
		h.WornPercent, h.WearUntold, told = uint32(v[3]), false, true
	}
	if v := logValue(pages[scsiLogBackground], 0, 4); v != nil {
		minutes := binary.BigEndian.Uint32(v)
		h.PowerOnHours, told = uint64(minutes/60), told || minutes > 0
	}
	const uncorrected = 6
	for _, page := range []byte{scsiLogReads, scsiLogWrites, scsiLogVerifies} {
		if v := logValue(pages[page], uncorrected, 1); v != nil {
			h.MediaErrors += bigEndian(v)
			told = told || h.MediaErrors > 0
		}
	}
	if !told {
		return nil // a virtual disk, or an array's controller: it has the pages, and nothing in them
	}
	return h
}

// scsiCelsius is 0 where it is not told: by the page of it, or else among the exceptions.
func scsiCelsius(heat, exceptions []byte) int32 {
	const untold = 0xff
	if len(heat) > 1 && heat[1] != untold && heat[1] != 0 {
		return int32(heat[1])
	}
	if len(exceptions) > 2 && exceptions[2] != untold {
		return int32(exceptions[2])
	}
	return 0
}

// bigEndian is a counter of any length, of which no more than the last 8 bytes are used.
func bigEndian(b []byte) (n uint64) {
	for _, c := range b {
		n = n<<8 | uint64(c)
	}
	return n
}

// scsiWarnings are those of code 0Bh (SPC-4, annex F) that say something of the disk.
var scsiWarnings = map[byte]string{
	0x01: "it is too hot or too cold", 0x02: "its enclosure is degraded", 0x03: "its own test of itself has failed",
	0x04: "it found sectors that it cannot read", 0x05: "it found sectors that it cannot read",
	0x06: "its cache has become volatile", 0x07: "the power of its cache is degraded",
}

// scsiException says in words what the additional sense code of an informational exception
// means, and whether the disk fails. Heat passes; the others of the warnings are no verdict.
func scsiException(code, qualifier byte) (text string, failing bool) {
	const (
		warning, predicted = 0x0b, 0x5d
		ownTest, drill     = 0x03, 0xff // a drill: somebody had it say so
	)
	switch {
	case code == predicted && qualifier != drill:
		return fmt.Sprintf("it says that it will fail soon (code 5Dh/%02Xh)", qualifier), true
	case code == warning:
		text = scsiWarnings[qualifier]
		if text == "" {
			text = fmt.Sprintf("it warns (code 0Bh/%02Xh)", qualifier)
		}
		return text, qualifier == ownTest
	}
	return "", false
}
