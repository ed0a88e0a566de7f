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
// ends. A disk that does not tell is not asked for long: a file system over a
// network, or a virtual disk, stays so.
func (s *Server) watchHealth(ctx context.Context, d *device) {
	for {
		h := s.deps.DiskHealth(d.dir)
		if h == nil {
			return
		}
		if was := d.health.Swap(h); h.Failing && !was.GetFailing() {
			s.deps.Log.Error("a disk says that it is failing", "device", d.dir, "model", h.Model, "why", h.Text)
		}
		if !s.sleep(ctx, smartEvery) {
			return
		}
	}
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
