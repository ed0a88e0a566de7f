package chunkserver

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine/transport/wire"
)

// fakeATA answers as a disk of ACS-4 does behind a layer of SAT-3.
type fakeATA struct {
	mode          byte // of power
	fails         bool
	fixed, silent bool // the format of sense data; no registers come back
	pages         map[string][]byte
	hangs         string // the command that does not come back
	asked         []string
}

// The commands as they are on the wire, as other tools print them.
const (
	cdbPower      = "85062000" + "00000000" + "00000000" + "0000e500"
	cdbIdentify   = "85080e00" + "00000100" + "00000000" + "0000ec00"
	cdbVerdict    = "85062000" + "da000000" + "00004f00" + "c200b000"
	cdbData       = "85080e00" + "d0000100" + "00004f00" + "c200b000"
	cdbThresholds = "85080e00" + "d1000100" + "00004f00" + "c200b000"
	cdbDirectory  = "85090e00" + "00000100" + "00000000" + "00002f00"
	cdbStatistics = "85090e00" + "00000100" + "04000000" + "00002f00"
)

// cdbStatistic reads a page of the log of statistics.
func cdbStatistic(page byte) string {
	return "85090e00" + "00000100" + "0400" + hex.EncodeToString([]byte{page}) + "00" + "00002f00"
}

func (d *fakeATA) do(cdb, in []byte) (scsiAnswer, error) {
	name := hex.EncodeToString(cdb)
	d.asked = append(d.asked, name)
	switch name {
	case d.hangs:
		return scsiAnswer{}, errors.New("timed out")
	case cdbPower:
		return d.registers(d.mode, 0, 0), nil
	case cdbVerdict:
		if d.fails {
			return d.registers(0, 0xf4, 0x2c), nil
		}
		return d.registers(0, 0x4f, 0xc2), nil
	}
	page, ok := d.pages[name]
	if !ok {
		return scsiAnswer{check: true, sense: []byte{0x72, 0xb, 0, 0, 0, 0, 0, 0}}, nil // aborted
	}
	return scsiAnswer{n: copy(in, page)}, nil
}

func (d *fakeATA) registers(count, mid, high byte) scsiAnswer {
	switch {
	case d.silent:
		return scsiAnswer{}
	case d.fixed:
		return scsiAnswer{check: true, sense: []byte{0x70, 0, 1, 0, 0x50, 0, count, 10, 0, 0, mid, high, 0, 0x1d, 0, 0, 0, 0}}
	}
	return scsiAnswer{check: true, sense: []byte{0x72, 1, 0, 0x1d, 18, 0, 0, 0,
		0x02, 2, 0, 0, // another descriptor
		0x09, 12, 0, 0, 0, count, 0, 0, 0, mid, 0, high, 0, 0x50}}
}

func putWord(p []byte, i int, v uint16) { binary.LittleEndian.PutUint16(p[2*i:], v) }

func identifyPage(solidState bool) []byte {
	p := make([]byte, ataSector)
	copy(p[2*27:], "AMEK RIDKS1 ") // the bytes of each word are swapped
	putWord(p, 82, 1)
	putWord(p, 83, 0x4000)
	putWord(p, 84, 0x4020)
	putWord(p, 85, 1)
	putWord(p, 87, 0x4000)
	putWord(p, 217, 7200)
	if solidState {
		putWord(p, 217, 1)
	}
	return p
}

// summed sets the checksum of a page.
func summed(p []byte) []byte {
	p[ataSector-1] = 0
	var sum byte
	for _, b := range p {
		sum += b
	}
	p[ataSector-1] = -sum
	return p
}

// attributesPage has lines of: id, flags, value, raw value.
func attributesPage(all ...[4]uint64) []byte {
	p := make([]byte, ataSector)
	for i, a := range all {
		l := p[attrFirst+i*attrSize:]
		l[0], l[1], l[3] = byte(a[0]), byte(a[1]), byte(a[2])
		binary.LittleEndian.PutUint32(l[5:], uint32(a[3]))
		binary.LittleEndian.PutUint16(l[9:], uint16(a[3]>>32))
	}
	return summed(p)
}

func statisticsPage(page byte, values map[int]uint64) []byte {
	p := make([]byte, ataSector)
	p[0], p[2] = 1, page
	for at, v := range values {
		binary.LittleEndian.PutUint64(p[at:], v|3<<62)
	}
	return p
}

func hardDisk() *fakeATA {
	thresholds := make([]byte, ataSector)
	copy(thresholds[attrFirst:], []byte{5, 10})
	copy(thresholds[attrFirst+attrSize:], []byte{9, 50})
	return &fakeATA{mode: 0xff, pages: map[string][]byte{
		cdbIdentify: identifyPage(false),
		cdbData: attributesPage([4]uint64{5, 3, 100, 0}, [4]uint64{9, 2, 40, 0xabcd_0000_0000 | 12_000},
			[4]uint64{187, 2, 98, 2}, [4]uint64{194, 2, 59, 45<<32 | 20<<16 | 41}, [4]uint64{197, 2, 100, 0}),
		cdbThresholds: summed(thresholds),
	}}
}

// TestHealthOfASATADisk: a hard disk with attributes only, by either format of sense data.
func TestHealthOfASATADisk(t *testing.T) {
	for _, fixed := range []bool{false, true} {
		d := hardDisk()
		d.fixed = fixed
		h, err := askATA(d.do, "of sysfs")
		require.NoError(t, err)
		require.Equal(t, "MAKER DISK 1", h.Model)
		require.False(t, h.Failing)
		require.Empty(t, h.Text)
		require.True(t, h.WearUntold)
		require.EqualValues(t, 100, h.SparePercent)
		require.EqualValues(t, 41, h.Celsius)
		require.EqualValues(t, 12_000, h.PowerOnHours)
		require.EqualValues(t, 2, h.MediaErrors)
		require.Equal(t, []string{cdbPower, cdbIdentify, cdbVerdict, cdbData, cdbDirectory}, d.asked)

		d.fails = true
		d.pages[cdbData] = attributesPage([4]uint64{5, 3, 9, 4000}, [4]uint64{9, 2, 40, 1}, [4]uint64{197, 2, 100, 8})
		h, err = askATA(d.do, "")
		require.NoError(t, err)
		require.True(t, h.Failing)
		require.Equal(t, "its attribute 5 (sectors moved) is at 9, its threshold at 10; 8 sectors cannot be read, or only with effort", h.Text)
		delete(d.pages, cdbThresholds)
		h, err = askATA(d.do, "")
		require.NoError(t, err)
		require.True(t, h.Failing, "by its own word")
		require.Contains(t, h.Text, "it says that it will fail soon")
	}
}

// TestStatisticsComeBeforeAttributes: what the standard defines before what makers put there.
func TestStatisticsComeBeforeAttributes(t *testing.T) {
	d := hardDisk()
	d.pages[cdbIdentify] = identifyPage(true)
	directory, list := make([]byte, ataSector), make([]byte, ataSector)
	putWord(directory, ataStatisticsLog, 8)
	list[8] = 6
	copy(list[9:], []byte{0, 1, 3, 4, 5, 7})
	maps.Copy(d.pages, map[string][]byte{
		cdbDirectory: directory, cdbStatistics: list,
		cdbStatistic(1): statisticsPage(1, map[int]uint64{16: 777}),
		cdbStatistic(3): statisticsPage(3, map[int]uint64{56: 5}),
		cdbStatistic(4): statisticsPage(4, map[int]uint64{8: 11}),
		cdbStatistic(5): statisticsPage(5, map[int]uint64{8: 0xfb}), // -5
		cdbStatistic(7): statisticsPage(7, map[int]uint64{8: 12}),
	})
	h, err := askATA(d.do, "")
	require.NoError(t, err)
	require.EqualValues(t, 777, h.PowerOnHours)
	require.EqualValues(t, 11, h.MediaErrors)
	require.EqualValues(t, -5, h.Celsius)
	require.EqualValues(t, 12, h.WornPercent)
	require.False(t, h.WearUntold)
	require.False(t, h.Failing)
	require.Equal(t, "5 sectors cannot be read, or only with effort", h.Text)

	// A value that is not valid, and a page that is another one, count as none.
	binary.LittleEndian.PutUint64(d.pages[cdbStatistic(5)][8:], 1<<63|70)
	d.pages[cdbStatistic(7)][2] = 6
	d.pages[cdbData] = attributesPage([4]uint64{194, 2, 59, 33}, [4]uint64{231, 3, 91, 0})
	h, err = askATA(d.do, "")
	require.NoError(t, err)
	require.EqualValues(t, 33, h.Celsius)
	require.EqualValues(t, 9, h.WornPercent, "of an attribute")
}

// TestASATADiskIsNotWoken: in standby it gets the one question, and no other.
func TestASATADiskIsNotWoken(t *testing.T) {
	for mode, asleep := range map[byte]bool{0x00: true, 0x01: true, 0x40: true, 0x80: false, 0x83: false, 0xff: false} {
		d := hardDisk()
		d.mode = mode
		h, err := askATA(d.do, "")
		if asleep {
			require.ErrorIs(t, err, errAsleep)
			require.Equal(t, []string{cdbPower}, d.asked)
			continue
		}
		require.NoError(t, err)
		require.NotNil(t, h)
	}
}

// TestASATADiskThatDoesNotTell: without SMART, switched off, or with nothing to say.
func TestASATADiskThatDoesNotTell(t *testing.T) {
	for name, change := range map[string]func(d *fakeATA){
		"it refuses all": func(d *fakeATA) { d.pages = nil },
		"no SMART":       func(d *fakeATA) { putWord(d.pages[cdbIdentify], 82, 0) },
		"off":            func(d *fakeATA) { putWord(d.pages[cdbIdentify], 85, 0) },
		"a short answer": func(d *fakeATA) { d.pages[cdbIdentify] = d.pages[cdbIdentify][:200] },
		"nothing but its name": func(d *fakeATA) {
			d.silent = true
			delete(d.pages, cdbData)
		},
		"a wrong checksum": func(d *fakeATA) { d.silent = true; d.pages[cdbData][511]++ },
	} {
		d := hardDisk()
		change(d)
		h, err := askATA(d.do, "")
		require.NoError(t, err, name)
		require.Nil(t, h, name)
	}
	// Without registers the thresholds decide.
	d := hardDisk()
	d.silent = true
	d.pages[cdbData] = attributesPage([4]uint64{5, 3, 10, 0}, [4]uint64{9, 2, 1, 0})
	h, err := askATA(d.do, "")
	require.NoError(t, err)
	require.True(t, h.Failing)
	// One that is past its threshold by age alone does not fail.
	d.pages[cdbData] = attributesPage([4]uint64{5, 3, 100, 0}, [4]uint64{9, 2, 1, 0})
	h, err = askATA(d.do, "")
	require.NoError(t, err)
	require.False(t, h.Failing)
}

// TestASickSATADiskIsLeftAlone: after a command that is not carried out there is no other.
func TestASickSATADiskIsLeftAlone(t *testing.T) {
	for _, hangs := range []string{cdbPower, cdbIdentify, cdbVerdict, cdbData, cdbDirectory} {
		d := hardDisk()
		d.hangs = hangs
		h, err := askATA(d.do, "")
		require.Error(t, err)
		require.Nil(t, h)
		require.Equal(t, 1, len(d.asked)-slices.Index(d.asked, hangs))
	}
}

// FuzzDiskAnswers has disks answer anything: nothing panics, and what is said can be sent.
func FuzzDiskAnswers(f *testing.F) {
	d := hardDisk()
	f.Add(slices.Concat(d.registers(0xff, 0, 0).sense, d.pages[cdbIdentify], d.pages[cdbData]), uint16(64))
	for _, p := range savedLogs() {
		f.Add(p, uint16(len(p)))
	}
	f.Add(slices.Repeat([]byte{0x72, 0x0b, 0xff, 0x09, 0x0c}, 200), uint16(512))
	f.Fuzz(func(t *testing.T, b []byte, step uint16) {
		for _, ask := range []func(scsiDo, string) (*wire.DiskHealth, error){askATA, askSCSI} {
			at := 0
			h, err := ask(func(_, in []byte) (scsiAnswer, error) {
				rest := b[min(at, len(b)):]
				at += int(step)
				sense := rest[:min(len(rest), 64, int(step))]
				return scsiAnswer{n: copy(in, rest), check: len(rest)%2 == 1, sense: sense}, nil
			}, "m")
			require.True(t, err == nil || errors.Is(err, errAsleep))
			_, err = proto.Marshal(h)
			require.NoError(t, err)
		}
	})
}

// TestTruncatedPages: every prefix of every page of a disk that tells all is read, or not.
func TestTruncatedPages(t *testing.T) {
	d := hardDisk()
	for name, whole := range d.pages {
		for n := range len(whole) {
			d.pages[name] = whole[:n]
			_, err := askATA(d.do, "")
			require.NoError(t, err)
		}
		d.pages[name] = whole
	}
	for _, sense := range [][]byte{(&fakeATA{}).registers(1, 2, 3).sense, (&fakeATA{fixed: true}).registers(1, 2, 3).sense} {
		whole, ok := readRegisters(sense)
		require.True(t, ok)
		require.Equal(t, ataRegisters{status: 0x50, count: 1, mid: 2, high: 3}, whole)
		for n := range len(sense) {
			if r, ok := readRegisters(sense[:n]); ok {
				require.Equal(t, whole, r)
			}
		}
	}
	for code, whole := range savedLogs() {
		for n := range len(whole) {
			saved := savedLogs()
			saved[code] = whole[:n]
			_, err := askSCSI((&fakeSAS{pages: saved}).do, "")
			require.NoError(t, err)
		}
	}
}
