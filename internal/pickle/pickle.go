// Package pickle reads Python pickles as plain values. It runs nothing and imports nothing: a class
// or a call in a pickle becomes an Object with its name, arguments and state. One path through it:
// Parse runs the opcodes over a stack (machine.go), and returns what is on it at the end.
package pickle

import "fmt"

// A value is nil, bool, int64, float64, string, []byte, Tuple, *List, *Dict, Global or *Object. A
// list may contain itself.
type (
	// Tuple is a tuple.
	Tuple []any
	// List is a list or a set.
	List struct{ Items []any }
	// Dict is a dictionary, in the order in which it was filled. A key may occur twice: the last one
	// counts.
	Dict struct{ Keys, Values []any }
	// Global names a class or a function.
	Global struct{ Module, Name string }
	// Object is an instance of a class, or the result of a call that was not made.
	Object struct {
		Class any // a Global, in pickles of plain data
		Args  Tuple
		State any // nil: none
	}
)

// Limits bound what Parse takes. Zero: nothing is permitted.
type Limits struct {
	// Bytes bounds the pickle. Values bounds the lists, dictionaries, tuples and objects in it. It may
	// have itemsPerValue times as many items. A value takes 100 bytes of memory or less, an item 32.
	Bytes, Values int
}

const itemsPerValue = 8

// TooLargeError is the error of a pickle past its limits.
type TooLargeError struct{ Reason string }

// Error returns the reason.
func (e *TooLargeError) Error() string { return e.Reason }

// Parse reads a pickle of protocol 0 to 5. b must have nothing after it. It fails on each opcode that
// plain data does not need: persistent references, extension codes and buffers among them.
func Parse(b []byte, l Limits) (any, error) {
	if len(b) > l.Bytes {
		return nil, &TooLargeError{fmt.Sprintf("the pickle has %d bytes, %d at most", len(b), l.Bytes)}
	}
	m := machine{in: string(b), left: l.Values, items: itemsPerValue * l.Values, memo: map[uint32]any{}}
	if err := m.run(); err != nil {
		return nil, fmt.Errorf("byte %d: %w", m.at, err)
	}
	return m.stack[0], nil
}

// Get returns the last value of a key that is a string.
func (d *Dict) Get(key string) (any, bool) {
	for n := len(d.Keys) - 1; n >= 0; n-- {
		if k, ok := d.Keys[n].(string); ok && k == key {
			return d.Values[n], true
		}
	}
	return nil, false
}

// Fields returns the attributes of an object that has them in a dictionary; nil if it has not.
func (o *Object) Fields() *Dict {
	switch s := o.State.(type) {
	case *Dict:
		return s
	case Tuple: // the dictionary, and that of the slots
		for n := len(s) - 1; n >= 0; n-- {
			if d, ok := s[n].(*Dict); ok {
				return d
			}
		}
	}
	return nil
}
