package pickle

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// maxMarks bounds the collections that are open at once.
const maxMarks = 1000

// machine is one Parse.
type machine struct {
	in    string
	at    int
	left  int // values that may still be made
	items int // numbers and texts that may still be read, and values that may be repeated
	stack []any
	marks []int // heights of the stack
	memo  map[uint32]any
}

var (
	errShort = errors.New("the pickle is cut short")
	errStack = errors.New("an opcode has nothing to take")
	errMany  = &TooLargeError{"the pickle has too many values"}
)

// run reads opcodes until STOP.
func (m *machine) run() error {
	for {
		op, err := m.byte()
		if err != nil {
			return err
		}
		if op == opStop {
			break
		}
		if err := m.step(op); err != nil {
			return err
		}
	}
	if len(m.stack) != 1 || len(m.marks) != 0 {
		return fmt.Errorf("%d values are left", len(m.stack))
	}
	if m.at != len(m.in) {
		return fmt.Errorf("%d bytes follow the pickle", len(m.in)-m.at)
	}
	return nil
}

func (m *machine) byte() (byte, error) {
	if m.at >= len(m.in) {
		return 0, errShort
	}
	m.at++
	return m.in[m.at-1], nil
}

func (m *machine) bytes(n uint64) (string, error) {
	if n > uint64(len(m.in)-m.at) {
		return "", errShort
	}
	m.at += int(n)
	return m.in[m.at-int(n) : m.at], nil
}

// number reads an unsigned little-endian number of a width.
func (m *machine) number(width int) (uint64, error) {
	s, err := m.bytes(uint64(width))
	if err != nil {
		return 0, err
	}
	var b [8]byte
	copy(b[:], s)
	return binary.LittleEndian.Uint64(b[:]), nil
}

// sized reads bytes after their length, which has a width.
func (m *machine) sized(width int) (string, error) {
	n, err := m.number(width)
	if err != nil {
		return "", err
	}
	return m.bytes(n)
}

// line reads up to the end of a line.
func (m *machine) line() (string, error) {
	n := strings.IndexByte(m.in[m.at:], '\n')
	if n < 0 {
		return "", errShort
	}
	s := m.in[m.at : m.at+n]
	m.at += n + 1
	return s, nil
}

// long reads a signed little-endian number of a length. Those of more than 8 bytes are refused.
func (m *machine) long(width int) (int64, error) {
	s, err := m.sized(width)
	if err != nil {
		return 0, err
	}
	if len(s) > 8 {
		return 0, fmt.Errorf("a number of %d bytes", len(s))
	}
	if s == "" {
		return 0, nil
	}
	var b [8]byte
	if s[len(s)-1]&0x80 != 0 {
		for n := range b {
			b[n] = 0xff
		}
	}
	copy(b[:], s)
	return int64(binary.LittleEndian.Uint64(b[:])), nil
}

func (m *machine) push(v any) error {
	if m.items--; m.items < 0 {
		return errMany
	}
	m.stack = append(m.stack, v)
	return nil
}

// pushNew pushes a value that counts.
func (m *machine) pushNew(v any) error {
	if m.left--; m.left < 0 {
		return errMany
	}
	return m.push(v)
}

// floor is the height below which an opcode may take nothing.
func (m *machine) floor() int {
	if len(m.marks) == 0 {
		return 0
	}
	return m.marks[len(m.marks)-1]
}

func (m *machine) pop() (any, error) {
	if len(m.stack) <= m.floor() {
		return nil, errStack
	}
	v := m.stack[len(m.stack)-1]
	m.stack = m.stack[:len(m.stack)-1]
	return v, nil
}

func (m *machine) top() (any, error) {
	if len(m.stack) <= m.floor() {
		return nil, errStack
	}
	return m.stack[len(m.stack)-1], nil
}

// popMark takes the values above the last mark. They are valid until the next push.
func (m *machine) popMark() ([]any, error) {
	if len(m.marks) == 0 {
		return nil, errors.New("there is no mark")
	}
	at := m.floor()
	m.marks = m.marks[:len(m.marks)-1]
	items := m.stack[at:]
	m.stack = m.stack[:at]
	return items, nil
}

func clone(items []any) []any { return append([]any(nil), items...) }

// tuple replaces the n values on top by a tuple.
func (m *machine) tuple(n int) error {
	if len(m.stack)-m.floor() < n {
		return errStack
	}
	at := len(m.stack) - n
	t := Tuple(clone(m.stack[at:]))
	m.stack = m.stack[:at]
	return m.pushNew(t)
}

// addItems adds values to the list or set on top.
func (m *machine) addItems(items []any) error {
	v, err := m.top()
	if err != nil {
		return err
	}
	l, ok := v.(*List)
	if !ok {
		return fmt.Errorf("items are added to a %T", v)
	}
	l.Items = append(l.Items, items...)
	return nil
}

// setItems adds keys and values to the dictionary on top.
func (m *machine) setItems(items []any) error {
	v, err := m.top()
	if err != nil {
		return err
	}
	if o, ok := v.(*Object); ok && o.State == nil {
		v = &Dict{} // of a class that behaves like one: nobody reads it
	}
	d, ok := v.(*Dict)
	if !ok || len(items)%2 != 0 {
		return fmt.Errorf("%d keys and values are set in a %T", len(items), v)
	}
	for n := 0; n < len(items); n += 2 {
		d.Keys, d.Values = append(d.Keys, items[n]), append(d.Values, items[n+1])
	}
	return nil
}

// object replaces a class and its arguments by an object.
func (m *machine) object() error {
	args, err := m.pop()
	if err != nil {
		return err
	}
	class, err := m.pop()
	if err != nil {
		return err
	}
	t, ok := args.(Tuple)
	if !ok {
		return fmt.Errorf("the arguments of a call are a %T", args)
	}
	return m.pushNew(&Object{Class: class, Args: t})
}

// build gives the object on top its state.
func (m *machine) build() error {
	state, err := m.pop()
	if err != nil {
		return err
	}
	v, err := m.top()
	if err != nil {
		return err
	}
	o, ok := v.(*Object)
	if !ok {
		return fmt.Errorf("a %T gets a state", v)
	}
	o.State = state
	return nil
}

func (m *machine) put(n uint32) error {
	v, err := m.top()
	if err != nil {
		return err
	}
	if _, known := m.memo[n]; !known {
		if m.items--; m.items < 0 {
			return errMany
		}
	}
	m.memo[n] = v
	return nil
}

func (m *machine) get(n uint32) error {
	v, ok := m.memo[n]
	if !ok {
		return fmt.Errorf("nothing was remembered as %d", n)
	}
	return m.push(v)
}

// lineNumber reads a number in decimal.
func (m *machine) lineNumber() (uint32, error) {
	s, err := m.line()
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err
}

func float(s string) float64 { return math.Float64frombits(binary.BigEndian.Uint64([]byte(s))) }
