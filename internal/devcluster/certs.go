package devcluster

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/pki"
)

// certificateLife is the term of the certificates of a cluster on one machine.
const certificateLife = 365 * 24 * time.Hour

// MakeCertificates makes an authority in dir, and the certificates that do not
// exist yet. They are for the metadata servers m1, m2, ..., the chunkservers
// n1, n2, ..., the S3 endpoint, `admin` and `client`.
func MakeCertificates(dir string, metadata, chunkservers int) error {
	ca, err := pki.LoadCA(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, moraine.NotFound) {
		ca, err = newAuthority(dir)
	}
	if err != nil {
		return err
	}
	requests := []pki.Request{
		{Role: pki.RoleAdmin, Node: "admin", NoSquash: true},
		{Role: pki.RoleClient, Node: "client", NoSquash: true},
		{Role: pki.RoleClient, Node: S3Name, NoSquash: true},
	}
	for i := range metadata {
		requests = append(requests, pki.Request{Role: pki.RoleMetadata, Node: fmt.Sprintf("m%d", i+1)})
	}
	for i := range chunkservers {
		requests = append(requests, pki.Request{Role: pki.RoleChunkserver, Node: fmt.Sprintf("n%d", i+1)})
	}
	return issue(ca, dir, requests)
}

// addCertificate makes the certificate of one more metadata server.
func addCertificate(dir, name string) error {
	ca, err := pki.LoadCA(dir)
	if err != nil {
		return err
	}
	return issue(ca, dir, []pki.Request{{Role: pki.RoleMetadata, Node: name}})
}

// issue makes the missing certificates.
func issue(ca *pki.CA, dir string, requests []pki.Request) error {
	for _, r := range requests {
		if _, err := os.Stat(filepath.Join(dir, r.Node+".crt")); err == nil {
			continue
		}
		r.Now, r.TTL = time.Now(), certificateLife
		cert, err := ca.Issue(r)
		if err != nil {
			return err
		}
		if err := cert.Save(dir, r.Node); err != nil {
			return err
		}
	}
	return nil
}

func newAuthority(dir string) (*pki.CA, error) {
	var cluster moraine.UUID
	if _, err := rand.Read(cluster[:]); err != nil {
		return nil, err
	}
	ca, err := pki.NewCA(cluster, time.Now(), certificateLife)
	if err != nil {
		return nil, err
	}
	return ca, ca.Save(dir)
}
