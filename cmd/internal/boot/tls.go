package boot

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// selfSignedFor is long because a process does not renew it, and no client can verify it in any case.
const selfSignedFor = 10 * 365 * 24 * time.Hour

// ServerTLS returns the TLS configuration of a server, TLS 1.2 or newer. dir holds tls.crt and tls.key, as a mounted
// Kubernetes secret does; with an empty dir it makes a self-signed certificate. If clientCA, a file of certificates, is not
// empty, every client must show a certificate signed by one of them. Files that change are read again at the next handshake;
// if they are broken, the last good ones stay in use. The error is an [Exit] with CodeConfig.
func ServerTLS(dir, clientCA string, log *slog.Logger) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if dir == "" {
		cert, err := selfSigned(time.Now())
		if err != nil {
			return nil, Configf("making a certificate: %w", err)
		}
		config.Certificates = []tls.Certificate{cert}
	} else {
		pair, err := followPair(dir, log)
		if err != nil {
			return nil, Configf("reading the certificate: %w", err)
		}
		config.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair.Get(), nil }
	}
	if clientCA == "" {
		return config, nil
	}
	signers, err := followCA(clientCA, log)
	if err != nil {
		return nil, Configf("reading the certificate authorities of clients: %w", err)
	}
	config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, signers.Get()
	config.SessionTicketsDisabled = true // a resumed session would skip the check of the client's certificate
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now := config.Clone()
		now.ClientCAs = signers.Get()
		return now, nil
	}
	return config, nil
}

// PeerTLS says how a client verifies the server it calls, and which certificate it shows.
type PeerTLS struct {
	CAFile   string // certificate authorities of the server; "": the system's
	CertDir  string // holds tls.crt and tls.key, shown to servers that ask; "": no certificate is shown
	Name     string // DNS name that the server's certificate must be for; "": the host that is called
	Insecure bool   // the server's certificate is not verified
}

// ClientTLS returns a function that returns the TLS configuration of a connection to a server, TLS 1.2 or newer, with the
// current content of the files: call it for each connection. The result must not be changed. The error is an [Exit] with
// CodeConfig.
func ClientTLS(p PeerTLS, log *slog.Logger) (func() *tls.Config, error) {
	base := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: p.Name,
		InsecureSkipVerify: p.Insecure} //nolint:gosec // the operator's choice, by a flag that says so
	if p.CertDir != "" {
		pair, err := followPair(p.CertDir, log)
		if err != nil {
			return nil, Configf("reading the client certificate: %w", err)
		}
		base.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return pair.Get(), nil }
	}
	if p.CAFile == "" {
		return func() *tls.Config { return base }, nil
	}
	signers, err := followCA(p.CAFile, log)
	if err != nil {
		return nil, Configf("reading the certificate authorities of the server: %w", err)
	}
	return func() *tls.Config {
		now := base.Clone()
		now.RootCAs = signers.Get()
		return now
	}, nil
}

// followPair follows the certificate and key of a directory.
func followPair(dir string, log *slog.Logger) (*Followed[*tls.Certificate], error) {
	certPath, keyPath := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	return Follow(log, "certificate", func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(certPath, keyPath)
		if err != nil {
			return nil, fmt.Errorf("%s and %s: %w", certPath, keyPath, err)
		}
		return &pair, nil
	}, certPath, keyPath)
}

// followCA follows a file of certificate authorities.
func followCA(file string, log *slog.Logger) (*Followed[*x509.CertPool], error) {
	return FollowFile(log, "certificate authorities", file, func(text []byte) (*x509.CertPool, error) {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(text) {
			return nil, errors.New("it holds no certificate in PEM")
		}
		return pool, nil
	})
}

// selfSigned makes a certificate for this host. It uses ECDSA P-256, which takes well under a millisecond; RSA can delay the
// start of a small pod by seconds.
func selfSigned(now time.Time) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return tls.Certificate{}, err
	}
	names := []string{"localhost"}
	if host, err := os.Hostname(); err == nil {
		names = append(names, host)
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: "tandem self-signed"},
		NotBefore:    now.Add(-time.Hour), // clients' clocks may be behind
		NotAfter:     now.Add(selfSignedFor),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:     names,
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
