// Package session has clients' registrations: sessions, their kept answers, revoked certificates,
// and the routing epoch.
//
// OpenSession writes a record. Each mutation then has a number: Admit returns the kept answer of a
// number that was answered before, and Keep stores a new answer. endSession deletes the record, and
// CleanSession removes the session's belongings in pieces.
package session

// The compiler inlines the methods of View.K only in packages that import keys themselves. Otherwise
// each key is allocated.
import _ "github.com/morainefs/moraine/metadata/state/keys"
