// Package session has the standing of clients: sessions, the answers that are
// kept for them, exclusive leases on directories, revoked certificates, and the
// routing epoch.
//
// OpenSession writes a record. Each mutation then has a number: Admit gives a
// number that was answered before the same answer, and Keep stores a new one.
// EndSession deletes the record; what the session owned goes in pieces, by
// CleanSession.
package session
