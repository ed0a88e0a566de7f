package chunkserver

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"github.com/morainefs/moraine/transport/wire"
)

// smartEvery is how often disks are asked how they are.
const smartEvery = 10 * time.Minute

// watchHealth asks the disk below a device how it is, again and again, until ctx
// ends. One that does not tell now, as a virtual disk, or one that was busy, may later.
func (s *Server) watchHealth(ctx context.Context, d *device) {
	for {
		h := s.deps.DiskHealth(d.dir)
		if was := d.health.Swap(h); h.GetFailing() && !was.GetFailing() {
			s.deps.Log.Error("a disk says that it is failing", "device", d.dir, "model", h.Model, "why", h.Text)
		}
		if !s.sleep(ctx, smartEvery) {
			return
		}
	}
}

// worstHealth is how disks are that hold one file system together: each figure is the worst
// of them, and what fails of one fails all. Nil where there are none.
func worstHealth(all []*wire.DiskHealth) *wire.DiskHealth {
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
		h.Text = strings.Trim(h.Text+"; "+o.Text, "; ")
	}
	return h
}

// The SMART log page of an NVMe disk (NVM Express Base Specification, log page 02h)
// is 512 bytes, little-endian.
const nvmeLogSize = 512

// nvmeWarnings are the bits of its first byte.
var nvmeWarnings = []string{
	"its spare blocks run out", "it is too hot or too cold", "it is not reliable any more", "it has become read-only",
	"its backup of volatile memory has failed", "its persistent memory has become unreliable",
}

// decodeNVMe reads the page; nil where it is too short or empty.
func decodeNVMe(model string, p []byte) *wire.DiskHealth {
	if len(p) < nvmeLogSize {
		return nil
	}
	le := binary.LittleEndian
	h := &wire.DiskHealth{Model: strings.TrimSpace(model), SparePercent: uint32(p[3]), WornPercent: uint32(p[5]),
		PowerOnHours: le.Uint64(p[128:]), MediaErrors: le.Uint64(p[160:])}
	kelvin := le.Uint16(p[1:])
	if kelvin == 0 && p[3] == 0 && h.PowerOnHours == 0 {
		return nil // a disk that has the command and nothing to say
	}
	h.Celsius = int32(kelvin) - 273
	var why []string
	for bit, text := range nvmeWarnings {
		// Heat passes; the others do not.
		if p[0]&(1<<bit) != 0 {
			why = append(why, text)
			h.Failing = h.Failing || bit != 1
		}
	}
	if p[3] < p[4] && p[0]&1 == 0 {
		why, h.Failing = append(why, fmt.Sprintf("%d%% of its spare blocks are left, below its own threshold of %d%%", p[3], p[4])), true
	}
	h.Text = strings.Join(why, "; ")
	return h
}
