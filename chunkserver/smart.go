package chunkserver

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/morainefs/moraine/transport/wire"
)

const (
	// smartEvery is how often disks are asked how they are.
	smartEvery = 10 * time.Minute
	// smartPatience is how long one may take to answer before that is logged.
	smartPatience = time.Minute
	// spareUntold is the part of its spare blocks that a disk has left which does not tell:
	// no less than any other of the same file system.
	spareUntold = 100
)

// watchHealth asks the disks below a device how they are, again and again, until ctx
// ends. One that does not tell now, as a virtual disk, or one that was busy, may later.
func (s *Server) watchHealth(ctx context.Context, d *device) {
	for s.askHealth(ctx, d) && s.sleep(ctx, smartEvery) {
	}
}

// askHealth asks once; false: ctx has ended. Who asks a disk that hangs is held in the
// kernel, where nothing reaches him. So it is a goroutine that nobody waits for when the
// server ends or lets the device go; there is never more than one of a device.
func (s *Server) askHealth(ctx context.Context, d *device) bool {
	answer := make(chan func(), 1)
	go func() {
		h, whole := s.deps.DiskHealth(d.dir)
		answer <- func() { s.keepHealth(d, h, whole) }
	}()
	late := s.deps.Clock.After(smartPatience)
	for {
		select {
		case keep := <-answer:
			keep()
			return true
		case <-late:
			s.deps.Log.Warn("a disk has been asked how it is and does not answer", "device", d.dir)
		case <-ctx.Done():
			return false
		}
	}
}

// keepHealth has what disks have said be told from now on. While one of them sleeps, or does
// not get to answering, what was known of all of them stands, unless another has begun to fail.
func (s *Server) keepHealth(d *device, h *wire.DiskHealth, whole bool) {
	was := d.health.Load()
	if !whole && was != nil && !h.GetFailing() {
		return
	}
	d.health.Store(h)
	if h.GetFailing() && !was.GetFailing() {
		s.deps.Log.Error("a disk says that it is failing", "device", d.dir, "model", h.Model, "why", h.Text)
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
		h.WearUntold = h.WearUntold && o.WearUntold
		h.Celsius, h.PowerOnHours = max(h.Celsius, o.Celsius), max(h.PowerOnHours, o.PowerOnHours)
		h.MediaErrors += o.MediaErrors
		h.Text = words(h.Text, o.Text)
	}
	return h
}

// words joins what there is to say.
func words(said ...string) string {
	return strings.Join(slices.DeleteFunc(said, func(s string) bool { return s == "" }), "; ")
}

// printable is a name as it can be shown and sent, whatever a disk has in it.
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
	"its spare blocks run out", "it is too hot or too cold", "it is not reliable any more", "it has become read-only",
	"its backup of volatile memory has failed", "its persistent memory has become unreliable",
}

// decodeNVMe reads the page; nil where it is too short or empty.
func decodeNVMe(model string, p []byte) *wire.DiskHealth {
	if len(p) < nvmeLogSize {
		return nil
	}
	le := binary.LittleEndian
	h := &wire.DiskHealth{Model: printable(model), SparePercent: uint32(p[3]), WornPercent: uint32(p[5]),
		PowerOnHours: le.Uint64(p[128:]), MediaErrors: le.Uint64(p[160:])}
	kelvin := le.Uint16(p[1:])
	if kelvin == 0 && p[3] == 0 && h.PowerOnHours == 0 {
		return nil // a disk that has the command and nothing to say
	}
	if kelvin != 0 {
		h.Celsius = int32(kelvin) - 273
	}
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
