// Package smart reads what NVMe disks report of their own health (SMART).
//
// One path through it: Read finds the whole disks below a directory in sysfs,
// and reads and decodes the log page of each. It combines the results into the
// worst.
package smart

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/morainefs/moraine/transport/wire"
)

// worst combines the health of the disks of one file system. Each figure is the
// worst of them, and a failing disk fails all. It returns nil if there are none.
func worst(all []*wire.DiskHealth) *wire.DiskHealth {
	if len(all) == 0 {
		return nil
	}
	h := all[0]
	for _, o := range all[1:] {
		if !strings.Contains(h.Model, o.Model) {
			h.Model += ", " + o.Model
		}
		h.Failing = h.Failing || o.Failing
		h.WornPercent, h.SparePercent = max(h.WornPercent, o.WornPercent), min(h.SparePercent, o.SparePercent)
		h.Celsius, h.PowerOnHours = max(h.Celsius, o.Celsius), max(h.PowerOnHours, o.PowerOnHours)
		h.MediaErrors += o.MediaErrors
		h.Text = strings.TrimPrefix(strings.TrimSuffix(h.Text+"; "+o.Text, "; "), "; ")
	}
	return h
}

// printable returns a name without unprintable bytes.
func printable(s string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}, s))
}

// The SMART log page of an NVMe disk (NVM Express Base Specification, log page 02h)
// is 512 bytes, little-endian.
const nvmeLogSize = 512

// nvmeWarnings are the bits of its first byte.
var nvmeWarnings = []string{
	"its spare blocks are running out", "its temperature is out of range", "its reliability is degraded", "it has become read-only",
	"its backup of volatile memory has failed", "its persistent memory has become unreliable",
}

// decodeNVMe decodes the page; nil if it is too short or empty.
func decodeNVMe(model string, p []byte) *wire.DiskHealth {
	if len(p) < nvmeLogSize {
		return nil
	}
	le := binary.LittleEndian
	h := &wire.DiskHealth{Model: printable(model), SparePercent: uint32(p[3]), WornPercent: uint32(p[5]),
		PowerOnHours: le.Uint64(p[128:]), MediaErrors: le.Uint64(p[160:])}
	kelvin := le.Uint16(p[1:])
	if kelvin == 0 && p[3] == 0 && h.PowerOnHours == 0 {
		return nil // a disk that has the command and reports nothing
	}
	if kelvin != 0 {
		h.Celsius = int32(kelvin) - 273
	}
	var why []string
	for bit, text := range nvmeWarnings {
		// A temperature warning passes by itself; the others do not.
		if p[0]&(1<<bit) != 0 {
			why = append(why, text)
			h.Failing = h.Failing || bit != 1
		}
	}
	if p[3] < p[4] && p[0]&1 == 0 {
		why, h.Failing = append(why, fmt.Sprintf("only %d%% of its spare blocks are left, below its own threshold of %d%%", p[3], p[4])), true
	}
	h.Text = strings.Join(why, "; ")
	return h
}
