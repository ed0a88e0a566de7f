package chunkserver

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// fakeSAS answers as a disk of SPC-4 and SBC-4 does.
type fakeSAS struct {
	sense []byte // what REQUEST SENSE answers; nil: nothing to say
	pages map[byte][]byte
	hangs byte // the page that does not come back
	asked int  // log pages
}

func (d *fakeSAS) do(cdb, in []byte) (scsiAnswer, error) {
	switch cdb[0] {
	case scsiRequestSense:
		if d.sense == nil {
			return scsiAnswer{n: copy(in, make([]byte, 18))}, nil
		}
		return scsiAnswer{n: copy(in, d.sense)}, nil
	case scsiLogSense:
		d.asked++
		code := cdb[2] & 0x3f
		if d.hangs != 0 && code == d.hangs {
			return scsiAnswer{}, errors.New("timed out")
		}
		if p, ok := d.pages[code]; ok && len(cdb) == 10 && cdb[2]>>6 == 1 && int(binary.BigEndian.Uint16(cdb[7:])) == len(in) {
			return scsiAnswer{n: copy(in, p)}, nil
		}
	}
	// Illegal request: there is no such thing.
	return scsiAnswer{check: true, sense: []byte{0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0, 0, 0, 0, 0}}, nil
}

// logValueBytes is one value of a log page.
func logValueBytes(code uint16, v ...byte) []byte {
	return append([]byte{byte(code >> 8), byte(code), 3, byte(len(v))}, v...)
}

func logPageBytes(code byte, values ...[]byte) []byte {
	p := []byte{code, 0, 0, 0}
	for _, v := range values {
		p = append(p, v...)
	}
	binary.BigEndian.PutUint16(p[2:], uint16(len(p)-4))
	return p
}

// savedLogs are the pages of a solid state disk that is well.
func savedLogs() map[byte][]byte {
	return map[byte][]byte{
		scsiLogPages:      {0, 0, 0, 8, 0x00, 0x02, 0x03, 0x05, 0x0d, 0x11, 0x15, 0x2f},
		scsiLogWrites:     logPageBytes(scsiLogWrites, logValueBytes(0, 0, 0, 0, 9), logValueBytes(6, 0, 0, 0, 1)),
		scsiLogReads:      logPageBytes(scsiLogReads, logValueBytes(3, 7), logValueBytes(6, 0, 0, 0, 0, 0, 0, 1, 2)),
		scsiLogVerifies:   logPageBytes(scsiLogVerifies, logValueBytes(6, 0)),
		scsiLogHeat:       logPageBytes(scsiLogHeat, logValueBytes(0, 0, 37), logValueBytes(1, 0, 70)),
		scsiLogSolidState: logPageBytes(scsiLogSolidState, logValueBytes(1, 0, 0, 0, 4)),
		scsiLogBackground: logPageBytes(scsiLogBackground, logValueBytes(0, 0, 0x0a, 0xfc, 0x80, 0, 0, 0, 0, 0, 0, 0, 0)),
		scsiLogExceptions: logPageBytes(scsiLogExceptions, logValueBytes(0, 0, 0, 38, 70)),
	}
}

func TestHealthOfASASDisk(t *testing.T) {
	d := &fakeSAS{pages: savedLogs()}
	h, err := askSCSI(d.do, "MAKER DISK")
	require.NoError(t, err)
	require.Equal(t, "MAKER DISK", h.Model)
	require.False(t, h.Failing)
	require.Empty(t, h.Text)
	require.EqualValues(t, 37, h.Celsius)
	require.EqualValues(t, 4, h.WornPercent)
	require.False(t, h.WearUntold)
	require.EqualValues(t, 0x102+1, h.MediaErrors)
	require.EqualValues(t, 12_000, h.PowerOnHours)
	require.EqualValues(t, 100, h.SparePercent)

	// A hard disk with less to say: its heat is among the exceptions.
	d.pages[scsiLogPages] = []byte{0, 0, 0, 2, 0x00, 0x2f}
	h, err = askSCSI(d.do, "")
	require.NoError(t, err)
	require.True(t, h.WearUntold)
	require.EqualValues(t, 38, h.Celsius)
	require.Zero(t, h.MediaErrors)
}

func TestWhatASASDiskSaysOfItself(t *testing.T) {
	for _, row := range []struct {
		code, qualifier byte
		failing         bool
		text            string
	}{
		{0, 0, false, ""},
		{0x5d, 0x32, true, "it says that it will fail soon (code 5Dh/32h)"},
		{0x5d, 0x00, true, "it says that it will fail soon (code 5Dh/00h)"},
		{0x5d, 0xff, false, ""}, // a drill
		{0x0b, 0x01, false, "it is too hot or too cold"},
		{0x0b, 0x03, true, "its own test of itself has failed"},
		{0x0b, 0x77, false, "it warns (code 0Bh/77h)"},
		{0x29, 0x00, false, ""}, // it was reset
	} {
		d := &fakeSAS{pages: savedLogs()}
		d.pages[scsiLogExceptions] = logPageBytes(scsiLogExceptions, logValueBytes(0, row.code, row.qualifier, 38))
		h, err := askSCSI(d.do, "")
		require.NoError(t, err)
		require.Equal(t, row.failing, h.Failing, row)
		require.Equal(t, row.text, h.Text, row)
	}
}

// TestASASDiskIsNotWoken: while it sleeps no page of it is read.
func TestASASDiskIsNotWoken(t *testing.T) {
	fixed := func(key, code, qualifier byte) []byte {
		return []byte{0x70, 0, key, 0, 0, 0, 0, 10, 0, 0, 0, 0, code, qualifier, 0, 0, 0, 0}
	}
	for _, row := range []struct {
		sense  []byte
		asleep bool
	}{
		{fixed(0, 0x5e, 0x02), true}, {fixed(0, 0x5e, 0x04), true}, {fixed(0, 0x5e, 0x0a), true}, {fixed(2, 0x04, 0x02), true},
		{[]byte{0x72, 0, 0x5e, 0x02, 0, 0, 0, 0}, true},
		{fixed(0, 0x5e, 0x01), false}, {fixed(0, 0x5e, 0x07), false}, {fixed(6, 0x29, 0), false}, {fixed(0, 0, 0), false}, {[]byte{}, false},
	} {
		d := &fakeSAS{sense: row.sense, pages: savedLogs()}
		h, err := askSCSI(d.do, "")
		if row.asleep {
			require.ErrorIs(t, err, errAsleep)
			require.Zero(t, d.asked)
			continue
		}
		require.NoError(t, err)
		require.NotNil(t, h)
	}
}

// TestASCSIDiskThatDoesNotTell: a virtual one, which has no pages, or has them empty.
func TestASCSIDiskThatDoesNotTell(t *testing.T) {
	empty := map[byte][]byte{scsiLogPages: {0, 0, 0, 3, 0x00, 0x0d, 0x2f}, scsiLogHeat: logPageBytes(scsiLogHeat, logValueBytes(0, 0, 0xff)),
		scsiLogExceptions: logPageBytes(scsiLogExceptions, logValueBytes(0, 0, 0, 0))}
	for _, pages := range []map[byte][]byte{nil, empty, {scsiLogPages: {0, 0, 0, 1, 0x0d}}, {scsiLogPages: {0, 0, 0xff}},
		{scsiLogPages: savedLogs()[scsiLogPages]}, {scsiLogPages: savedLogs()[scsiLogPages], scsiLogExceptions: savedLogs()[scsiLogHeat]}} {
		h, err := askSCSI((&fakeSAS{pages: pages}).do, "")
		require.NoError(t, err)
		require.Nil(t, h)
	}
}

// TestASickSASDiskIsLeftAlone: after a command that is not carried out there is no other.
func TestASickSASDiskIsLeftAlone(t *testing.T) {
	d := &fakeSAS{pages: savedLogs(), hangs: scsiLogExceptions}
	h, err := askSCSI(d.do, "")
	require.Error(t, err)
	require.Nil(t, h)
	require.Equal(t, 2, d.asked)
}
