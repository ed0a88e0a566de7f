package view

import "time"

// How long before its end a certificate counts as one that expires soon.
const (
	// CertificateLeast is how long each certificate must still be valid for the status to
	// be green. CertificateWarning is how long before its end the status names a
	// certificate.
	CertificateLeast   = 7 * 24 * time.Hour
	CertificateWarning = 30 * 24 * time.Hour
)
