package pickle

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

const opStop = '.'

// step runs one opcode. Their names are those of Python's pickletools.
func (m *machine) step(op byte) error {
	switch op {
	case 0x80: // PROTO
		v, err := m.byte()
		if err == nil && v > 5 {
			err = fmt.Errorf("a pickle of protocol %d; this build reads 5", v)
		}
		return err
	case 0x95: // FRAME
		_, err := m.number(8)
		return err
	case '(': // MARK
		if len(m.marks) == maxMarks {
			return errMany
		}
		m.marks = append(m.marks, len(m.stack))
		return nil
	case '0': // POP
		_, err := m.pop()
		return err
	case '1': // POP_MARK
		_, err := m.popMark()
		return err
	case '2': // DUP
		v, err := m.top()
		if err != nil {
			return err
		}
		return m.push(v)
	case 'N': // NONE
		return m.push(nil)
	case 0x88, 0x89: // NEWTRUE, NEWFALSE
		return m.push(op == 0x88)
	case 'R', 0x81: // REDUCE, NEWOBJ
		return m.object()
	case 0x92: // NEWOBJ_EX
		if _, err := m.pop(); err != nil {
			return err
		}
		return m.object()
	case 'b': // BUILD
		return m.build()
	case 'c', 0x93: // GLOBAL, STACK_GLOBAL
		return m.global(op)
	case 'p', 'q', 'r', 0x94, 'g', 'h', 'j':
		return m.memory(op)
	case ']', ')', '}', 0x8f, 'l', 'd', 't', 0x91, 0x85, 0x86, 0x87, 'a', 'e', 's', 'u', 0x90:
		return m.container(op)
	}
	return m.scalar(op)
}

// global pushes the name of a class or function.
func (m *machine) global(op byte) error {
	if op == 'c' {
		module, err := m.line()
		if err != nil {
			return err
		}
		name, err := m.line()
		if err != nil {
			return err
		}
		return m.pushNew(Global{module, name})
	}
	name, err := m.pop()
	if err != nil {
		return err
	}
	module, err := m.pop()
	if err != nil {
		return err
	}
	a, ok := module.(string)
	b, ok2 := name.(string)
	if !ok || !ok2 {
		return errors.New("the name of a class is no text")
	}
	return m.pushNew(Global{a, b})
}

// memory puts the top of the stack into the memo, or pushes what is there.
func (m *machine) memory(op byte) error {
	var n uint64
	var err error
	switch op {
	case 'p', 'g': // PUT, GET
		var k uint32
		k, err = m.lineNumber()
		n = uint64(k)
	case 'q', 'h': // BINPUT, BINGET
		n, err = m.number(1)
	case 'r', 'j': // LONG_BINPUT, LONG_BINGET
		n, err = m.number(4)
	default: // MEMOIZE
		n = uint64(len(m.memo))
	}
	if err != nil {
		return err
	}
	if op == 'g' || op == 'h' || op == 'j' {
		return m.get(uint32(n))
	}
	return m.put(uint32(n))
}

// container makes or fills lists, sets, dictionaries and tuples.
func (m *machine) container(op byte) error {
	switch op {
	case ']', 0x8f: // EMPTY_LIST, EMPTY_SET
		return m.pushNew(&List{})
	case ')': // EMPTY_TUPLE
		return m.pushNew(Tuple(nil))
	case '}': // EMPTY_DICT
		return m.pushNew(&Dict{})
	case 0x85, 0x86, 0x87: // TUPLE1, TUPLE2, TUPLE3
		return m.tuple(int(op - 0x84))
	case 'a': // APPEND
		v, err := m.pop()
		if err != nil {
			return err
		}
		return m.addItems([]any{v})
	case 's': // SETITEM
		v, err := m.pop()
		if err != nil {
			return err
		}
		k, err := m.pop()
		if err != nil {
			return err
		}
		return m.setItems([]any{k, v})
	}
	items, err := m.popMark()
	if err != nil {
		return err
	}
	items = clone(items)
	switch op {
	case 'l', 0x91: // LIST, FROZENSET
		return m.pushNew(&List{items})
	case 't': // TUPLE
		return m.pushNew(Tuple(items))
	case 'd': // DICT
		if err := m.pushNew(&Dict{}); err != nil {
			return err
		}
		return m.setItems(items)
	case 'u': // SETITEMS
		return m.setItems(items)
	}
	return m.addItems(items) // APPENDS, ADDITEMS
}

// widths has the width of the length of texts and bytes.
var widths = map[byte]int{'X': 4, 0x8c: 1, 0x8d: 8, 'T': 4, 'U': 1, 'B': 4, 'C': 1, 0x8e: 8}

// scalar pushes a number, a text or bytes.
func (m *machine) scalar(op byte) error {
	switch op {
	case 'J': // BININT
		n, err := m.number(4)
		if err != nil {
			return err
		}
		return m.push(int64(int32(n)))
	case 'K', 'M': // BININT1, BININT2
		width := 1
		if op == 'M' {
			width = 2
		}
		n, err := m.number(width)
		if err != nil {
			return err
		}
		return m.push(int64(n))
	case 0x8a, 0x8b: // LONG1, LONG4
		width := 1
		if op == 0x8b {
			width = 4
		}
		n, err := m.long(width)
		if err != nil {
			return err
		}
		return m.push(n)
	case 'G': // BINFLOAT
		s, err := m.bytes(8)
		if err != nil {
			return err
		}
		return m.push(float(s))
	case 'X', 0x8c, 0x8d, 'T', 'U': // BINUNICODE and its kin, BINSTRING and its kin
		s, err := m.sized(widths[op])
		if err != nil {
			return err
		}
		return m.push(s)
	case 'B', 'C', 0x8e: // BINBYTES and its kin
		s, err := m.sized(widths[op])
		if err != nil {
			return err
		}
		return m.push([]byte(s))
	case 'I', 'L', 'F', 'V': // INT, LONG, FLOAT, UNICODE
		return m.text(op)
	}
	return fmt.Errorf("opcode %#02x is not one of plain data", op)
}

// text pushes a value of protocol 0, which is a line.
func (m *machine) text(op byte) error {
	s, err := m.line()
	if err != nil {
		return err
	}
	switch {
	case op == 'V':
		return m.push(s)
	case op == 'F':
		f, err := strconv.ParseFloat(s, 64)
		if err != nil {
			return err
		}
		return m.push(f)
	case op == 'I' && (s == "00" || s == "01"):
		return m.push(s == "01")
	}
	n, err := strconv.ParseInt(strings.TrimSuffix(s, "L"), 10, 64)
	if err != nil {
		return err
	}
	return m.push(n)
}
