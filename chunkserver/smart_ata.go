package chunkserver

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/morainefs/moraine/transport/wire"
)

// ataSector is the length of everything that an ATA disk tells, little-endian.
const ataSector = 512

// Commands of ACS-4, and features of its SMART command; the thresholds are of ATA-3, and
// disks still have them.
const (
	ataIdentify       = 0xec
	ataCheckPower     = 0xe5
	ataReadLog        = 0x2f // of 48 bits
	ataSMART          = 0xb0
	smartReadData     = 0xd0
	smartThresholds   = 0xd1
	smartReturnStatus = 0xda
)

// ataCommand is a command to an ATA disk.
type ataCommand struct {
	command, feature byte
	low, mid, high   byte // bits 0 to 23 of the address
	data             bool // a sector comes back, else registers
}

// ataSmart is a SMART command. Its signature keeps other commands from being taken for it.
func ataSmart(feature byte, data bool) ataCommand {
	return ataCommand{command: ataSMART, feature: feature, mid: 0x4f, high: 0xc2, data: data}
}

// cdb is the command as ATA PASS-THROUGH (16) has it (SAT-3, 12.2.3).
func (c ataCommand) cdb() []byte {
	const (
		passThrough        = 0x85
		noData, in         = 3 << 1, 4 << 1
		extended           = 1
		wantRegisters      = 1 << 5
		fromDisk, byBlocks = 1 << 3, 1 << 2
		lengthInCount      = 2
	)
	b := make([]byte, 16)
	b[0], b[1], b[2] = passThrough, noData, wantRegisters
	if c.data {
		b[1], b[2], b[6] = in, fromDisk|byBlocks|lengthInCount, 1
	}
	if c.command == ataReadLog {
		b[1] |= extended
	}
	b[4], b[8], b[10], b[12], b[14] = c.feature, c.low, c.mid, c.high, c.command
	return b
}

// sector has a disk send one; nil where it refuses, or sends less.
func (c ataCommand) sector(do scsiDo) ([]byte, error) {
	in := make([]byte, ataSector)
	a, err := do(c.cdb(), in)
	if err != nil || a.refused() || a.n < ataSector {
		return nil, err
	}
	return in, nil
}

// ataRegisters is what a disk leaves in its registers.
type ataRegisters struct{ status, count, mid, high byte }

// readRegisters takes them from sense data; not ok where they are not in it, as some HBAs
// leave them out, or where the command failed.
func readRegisters(s []byte) (r ataRegisters, ok bool) {
	const inFixed, inDescriptors = 0x70, 0x72
	_, code, qualifier, ok := readSense(s)
	switch {
	case !ok:
	case s[0]&0x7f == inFixed:
		// Bytes 3 to 6 and 8 to 11, and only with this code (SAT-3, 12.2.2.7).
		if ok = len(s) >= 14 && code == 0 && qualifier == 0x1d; ok {
			r = ataRegisters{status: s[4], count: s[6], mid: s[10], high: s[11]}
		}
	case s[0]&0x7f == inDescriptors:
		r, ok = registersDescribed(s)
	default:
		ok = false
	}
	const failed = 1
	return r, ok && r.status&failed == 0
}

// registersDescribed finds the descriptor that has them (SAT-3, 12.2.2.6).
func registersDescribed(s []byte) (ataRegisters, bool) {
	const head, ofATA, its = 8, 0x09, 14
	if len(s) < head {
		return ataRegisters{}, false
	}
	for d := s[head:]; len(d) >= 2; d = d[min(len(d), 2+int(d[1])):] {
		if d[0] == ofATA && len(d) >= its {
			return ataRegisters{status: d[13], count: d[5], mid: d[9], high: d[11]}, true
		}
	}
	return ataRegisters{}, false
}

// askATA asks an ATA disk how it is: nil where it does not tell.
func askATA(do scsiDo, model string) (*wire.DiskHealth, error) {
	// CHECK POWER MODE is the one command that leaves a disk in standby where it is. Where
	// the registers do not come back it is not known, and the disk is asked.
	a, err := do(ataCommand{command: ataCheckPower}.cdb(), nil)
	if err != nil {
		return nil, err
	}
	if r, ok := readRegisters(a.sense); ok && ataAsleep(r.count) {
		return nil, errAsleep
	}
	id, err := ataCommand{command: ataIdentify, data: true}.sector(do)
	if err != nil || id == nil || !ataTells(id) {
		return nil, err
	}
	if m := ataModel(id); m != "" {
		model = m
	}
	if a, err = do(ataSmart(smartReturnStatus, false).cdb(), nil); err != nil {
		return nil, err
	}
	verdict := ataVerdict(a.sense)
	p := ataPages{model: model, verdict: verdict, solidState: word(id, 217) == 1}
	if p.attributes, err = ataSmart(smartReadData, true).sector(do); err != nil {
		return nil, err
	}
	if verdict != ataWell { // which attribute it is
		if p.thresholds, err = ataSmart(smartThresholds, true).sector(do); err != nil {
			return nil, err
		}
	}
	if ataHasLogs(id) {
		if p.statistics, err = ataStatistics(do); err != nil {
			return nil, err
		}
	}
	return p.decode(), nil
}

// ataAsleep reports whether what CHECK POWER MODE leaves in the count is a mode in which the
// medium stands still (ACS-4, 7.4).
func ataAsleep(mode byte) bool {
	const standby, standbyY, stopped = 0x00, 0x01, 0x40 // stopped: active by a cache of its own
	return slices.Contains([]byte{standby, standbyY, stopped}, mode)
}

func word(sector []byte, i int) uint16 { return binary.LittleEndian.Uint16(sector[2*i:]) }

// ataTells reports whether a disk has SMART and it is on. What IDENTIFY DEVICE says of that
// counts where its own mark is there.
func ataTells(id []byte) bool {
	const mark, mask = 0x4000, 0xc000
	return word(id, 83)&mask == mark && word(id, 82)&1 != 0 && (word(id, 87)&mask != mark || word(id, 85)&1 != 0)
}

// ataHasLogs reports whether a disk has the general purpose logs.
func ataHasLogs(id []byte) bool {
	const mark, mask, logs = 0x4000, 0xc000, 1 << 5
	return word(id, 84)&(mask|logs) == mark|logs
}

// ataModel is what the disk is called: words with their bytes swapped.
func ataModel(id []byte) string {
	name := slices.Clone(id[2*27 : 2*47])
	for i := 0; i < len(name); i += 2 {
		name[i], name[i+1] = name[i+1], name[i]
	}
	return printable(string(name))
}

type ataSays int

const (
	ataUnsaid ataSays = iota // the registers did not come back
	ataWell
	ataFails
)

// ataVerdict reads what SMART RETURN STATUS leaves in the registers.
func ataVerdict(sense []byte) ataSays {
	r, ok := readRegisters(sense)
	switch {
	case ok && r.mid == 0x4f && r.high == 0xc2:
		return ataWell
	case ok && r.mid == 0xf4 && r.high == 0x2c:
		return ataFails
	}
	return ataUnsaid
}

// Pages of the log of statistics (ACS-4, 9.5) that are wanted.
const (
	ataStatisticsLog   = 0x04
	statGeneral        = 1
	statRotating       = 3
	statErrors         = 4
	statHeat           = 5
	statSolidState     = 7
	statHours          = 16 // of statGeneral
	statPendingSectors = 56 // of statRotating
	statFirst          = 8  // of the others: lost reads and writes; the heat now; how far it is worn
)

// ataStatistics reads the pages that there are. The logs' directory comes first: a command
// for what a disk does not have would be refused each time, and on Linux stop all else on it
// for a moment.
func ataStatistics(do scsiDo) (map[byte][]byte, error) {
	log := func(address, page byte) ([]byte, error) {
		return ataCommand{command: ataReadLog, low: address, mid: page, data: true}.sector(do)
	}
	directory, err := log(0, 0)
	if err != nil || directory == nil || word(directory, ataStatisticsLog) == 0 {
		return nil, err
	}
	list, err := log(ataStatisticsLog, 0)
	if err != nil || list == nil {
		return nil, err
	}
	there := list[9:min(9+int(list[8]), len(list))]
	pages := map[byte][]byte{}
	for _, page := range []byte{statGeneral, statRotating, statErrors, statHeat, statSolidState} {
		if !slices.Contains(there, page) {
			continue
		}
		p, err := log(ataStatisticsLog, page)
		if err != nil {
			return nil, err
		}
		if p != nil && p[2] == page {
			pages[page] = p
		}
	}
	return pages, nil
}

// ataPages is what a disk has told; all but the verdict may be missing.
type ataPages struct {
	model                  string
	verdict                ataSays
	solidState             bool
	attributes, thresholds []byte
	statistics             map[byte][]byte
}

// statistic is one value, where the disk has it and says that it is valid.
func (p *ataPages) statistic(page byte, offset int) (uint64, bool) {
	s := p.statistics[page]
	if len(s) < offset+8 {
		return 0, false
	}
	const supported, valid, value = 1 << 63, 1 << 62, 1<<56 - 1
	v := binary.LittleEndian.Uint64(s[offset:])
	return v & value, v&(supported|valid) == supported|valid
}

// ataAttribute is one line of the page that each maker fills in his own way.
type ataAttribute struct {
	id, value byte
	early     bool // at its threshold the disk fails soon; else it is old
	raw       uint64
}

// Attributes that makers agree about, mostly.
const (
	attrHours, attrLost, attrAirHeat, attrHeat, attrPending = 9, 187, 190, 194, 197
)

// attrsOfWear count down from 100, by Samsung, Micron, Kingston and Intel. They are read
// only of solid state disks without the statistics.
var attrsOfWear = []byte{177, 202, 231, 233}

var attrNames = map[byte]string{1: "read errors", 3: "spin-up time", 5: "sectors moved", 7: "seek errors", 10: "spin-up retries",
	184: "errors on the way to its host", 187: "sectors lost", 196: "moves of sectors", 197: "sectors to be moved", 198: "sectors that cannot be read"}

const attrLines, attrFirst, attrSize = 30, 2, 12

// lines are the attributes of a page whose checksum is right.
func lines(page []byte) (all [][]byte) {
	if len(page) < ataSector || !sumsUp(page) {
		return nil
	}
	for i := range attrLines {
		if l := page[attrFirst+i*attrSize:][:attrSize]; l[0] != 0 {
			all = append(all, l)
		}
	}
	return all
}

func sumsUp(page []byte) bool {
	var sum byte
	for _, b := range page {
		sum += b
	}
	return sum == 0
}

func (p *ataPages) attribute(id byte) (ataAttribute, bool) {
	for _, l := range lines(p.attributes) {
		if l[0] == id {
			return ataAttribute{id: id, early: l[1]&1 != 0, value: l[3],
				raw: uint64(binary.LittleEndian.Uint32(l[5:])) | uint64(binary.LittleEndian.Uint16(l[9:]))<<32}, true
		}
	}
	return ataAttribute{}, false
}

// decode puts together what there is: the statistics, which the standard defines, before the
// attributes. Nil where there is nothing.
func (p *ataPages) decode() *wire.DiskHealth {
	if p.verdict == ataUnsaid && lines(p.attributes) == nil && len(p.statistics) == 0 {
		return nil
	}
	h := &wire.DiskHealth{Model: p.model, SparePercent: spareUntold, Failing: p.verdict == ataFails}
	h.PowerOnHours = p.figure(statGeneral, statHours, attrHours, 1<<24-1) // above it makers have minutes
	h.MediaErrors = p.figure(statErrors, statFirst, attrLost, 1<<32-1)
	h.Celsius = p.celsius()
	var worn bool
	h.WornPercent, worn = p.worn()
	h.WearUntold = !worn
	var pending string
	if n := p.figure(statRotating, statPendingSectors, attrPending, 1<<32-1); n > 0 {
		pending = fmt.Sprintf("%d sectors cannot be read, or only with effort", n)
	}
	crossed := p.crossed()
	h.Failing = h.Failing || crossed != ""
	if h.Failing && crossed == "" {
		crossed = "it says that it will fail soon"
	}
	h.Text = words(crossed, pending)
	return h
}

// figure is a statistic, or what of an attribute's raw value is usually it, or 0.
func (p *ataPages) figure(page byte, offset int, id byte, mask uint64) uint64 {
	if v, ok := p.statistic(page, offset); ok {
		return v & (1<<32 - 1)
	}
	a, _ := p.attribute(id)
	return a.raw & mask
}

// celsius is 0 where it is not told. What no disk that answers can have is none.
func (p *ataPages) celsius() int32 {
	sane := func(v uint64) (int32, bool) {
		c := int32(int8(v))
		return c, c > -40 && c < 120 && c != 0
	}
	if v, ok := p.statistic(statHeat, statFirst); ok {
		if c, ok := sane(v); ok {
			return c
		}
	}
	for _, id := range []byte{attrHeat, attrAirHeat} {
		if a, ok := p.attribute(id); ok {
			if c, ok := sane(a.raw); ok {
				return c
			}
		}
	}
	return 0
}

// worn is how far the disk is, in percent; not ok where it does not tell, or does not wear.
func (p *ataPages) worn() (uint32, bool) {
	if v, ok := p.statistic(statSolidState, statFirst); ok {
		return uint32(v & 0xff), true
	}
	if !p.solidState {
		return 0, false
	}
	for _, id := range attrsOfWear {
		if a, ok := p.attribute(id); ok && a.value >= 1 && a.value <= 100 {
			return 100 - uint32(a.value), true
		}
	}
	return 0, false
}

// crossed names the attributes that are at their thresholds and foretell a failure.
func (p *ataPages) crossed() string {
	var said []string
	for _, l := range lines(p.thresholds) {
		const always, never = 0, 0xff // the first never warns; the last is for tests
		id, threshold := l[0], l[1]
		a, ok := p.attribute(id)
		if !ok || !a.early || threshold == always || threshold == never || a.value > threshold {
			continue
		}
		name := attrNames[id]
		if name != "" {
			name = " (" + name + ")"
		}
		said = append(said, fmt.Sprintf("its attribute %d%s is at %d, its threshold at %d", id, name, a.value, threshold))
	}
	return words(said...)
}
