#include "files/grids.h"

namespace sterna {

namespace {

// The published entries, as llama.cpp's ggml-common.h lists them (iq1s_grid, iq2xxs_grid, iq2xs_grid, iq2s_grid,
// iq3xxs_grid, iq3s_grid). An entry is a number whose digits are the places of its values among all values of the
// grid, the first value's digit being the lowest. Numbers ascend, so each is written as its distance from the one
// before: a digit of base64, after a '=' for each 64.
// clang-format off
constexpr char kIq1Gaps[] =
    "ACCCCCDFCECFGCCIFCECFFCECEBGCCCBFGECECECCCBHGCCIFCECFFCECFGGFECCECCDDCCECLCCIGGGEEBPGGGCBBIC"
    "CICEEBBCBBCCCCCCCJDCCCCBBCOEMCGCCCDBECGGCELCECFFCECFGEIFCECFFCECFGCEFBGIBDGCEMCCCGFCECFFCECF"
    "GGDDFCCCCFFCECKBCEFBGCGECECBDMCCFDGCCCCCCCECEGEBBBBBBCCEIICGCQCCIFFCECCCECIGCCIGECFBCBDEFDBB"
    "CCCBBCECCGECDBCBBCCBDECECCBBCCCCCCCCBBFBBBBCBCCBBCCCBBCCBBCBBCBBCCGCBBIBBCCEECBBCCCDBBBDCBCB"
    "BGDDCIEMEIGCCCCECCBBCCCGGCKOCCECDHBBCECBBCBBEEIDBCCEECJHHCHCCCCCCEECGGEDKCECFFCCCCFGGDDFCECF"
    "FCCCCFGCEGHBEGCCCCBBIFFCGGFCCDFCECFGECGGFCCDFCECFICCGIBBCECCCGIGCEDDMGGGCECECBDECCKCDBCCCCCC"
    "GFCFGGGGFBGFCEIKCECFFCECFGCKFCECKCECIDCEGKCECGCCCGFFCFBFCECKCECFGECGFCECFFCECFGEIMECCCCCCQED"
    "EEBCCCECBBCCECGCCCCBBCBFCCCCCECCFBBLGCCIGKCEEEJFKGMDJGCCCCBBFBCCCCECCCCFBGDBCECCBBCCEECCBBCC"
    "BCBBBBDCBBCEBBCECBBCBFCCCDDFBCCCCECCCCDBBCBCECCEDEEBGCCIGDEFHFCECECCCGGCCCGGDBDBDBCECCEEECBB"
    "BBCCCCBDGCECBBECCCQQCCGCCEEOKGCBBCECECCECECECBBCGCICGCDBECGCBBCCBBBBCEBBCCCBBCCBBBBBBBBCCBBC"
    "ECGCBBCCEECEGCECCICECCBBCECJFCCDBEJBGCBBBBDDCCCCBBCBBBCBBBBBCBBBBCCGCCCBBCDCBECBBBBCCBBBBBCB"
    "CCBBCCBBBBBBBCBBBBBBBBBBCBBBBBCCBDBBBCBBBBDCBBCCBBBCBBDCBCBCBBBBBBBDDBBBBBBBBBBBBBCCBDECBBBB"
    "CDEDCBBBFBBCCECEHFCCCCBBBBCCBBHFCCCCEGDBCECCBBCGGCBBCCBBBBBBBBCCBBCDDDDCBBBBGIDHEBEBCGCBDDBB"
    "BECCCCHDCBBCCMICCGIGEBBCCCCCDNIGCCCECGBDCGDDDBCGBDEFDCGECMECLBEIBBDNGEIPBCBDCECCCCCCCCBBCBBC"
    "CIBDCCBBBBCCCEGCCCDBCOBBCCBCBBCDCBBCHCBCDBCBDCBBFFGFFBBCECCCCBBBCBECDCCEECBBCDCDPCGGKCECGGGF"
    "IFCGEGCCCCBDBBECBBCCEEDBFFGCBDMEBNCECECCEBDHHDCGECECKCECFFBCCCGFCECFFCECFGCCCGGCECCCBBBFCCGD"
    "FCCGFCECFFCECLCEGFCECFFCECNEMCHDECCEOEMGECEGCCBDCECBBCBFBBCCCCCCCCCIOECGGCEBBEDBCEDFGHEGCECF"
    "FCECCDGCEGDCCECFFCECFBFCCIGCCCCCCECCKKCGFCECFFCECFGCCNCECFFCECFGEBBGGECGCCIBFGCCCGGCCCCECCCC"
    "CCCEFBCBBCECICGCCECCCGGCEGICCCCCCICGICLDCCEECIEICCBBBBCBBCICGBBCEGCECCBBCBBCDDDBCCBBCCBBBBBB"
    "BBCCBBCDDCEBBBBCBBCCCCCCGEDCFCGCBDBCBCGCFBEBDBBICCGKCGGEECCBDEBJGECGICCCCCCCBBCCECCCCCCBBCEC"
    "BDCCGCCECEIJJICCCECEMGCBBNCECFFCECFGCCCLCECFFCECFDDCCCBPCDDCCCCKFCDCNECBHEECFGECGFCECFFCECRG"
    "GCGDBCCCDBBBGcCCCCCICECGCBBCGECCBBCECCQGEDCDICDDCBBDCMEEBCDCCECECKCECLCCCLCECFFCECFIEDDGIEEC"
    "ECLFNCECKCECLCCNCECFFCEC";
// The rectangles of Iq1Grid: those of kinds 0 to 2, then those of kind 3. A half is the number whose lowest digit, of base 3,
// is the place of the first of four values; it is written as a character from '#' on, but not '\\'. A search found these:
// it takes some rectangles away, puts others where entries are free, and undoes what leaves more entries without one.
// Other rectangles would do as well.
constexpr char kIq1Rectangles[] =
    "#%7[=LYl#)5=+[`b#)=[#%)5#Hln?grt$0BL?GKN$0Kg'AQh$0_e1E^f%57Y%5rt%7`n);`b%Ngp0BKN%grt#+[n&:Xb"
    "1KOW&:]eQdhj&BFG'-JL'-GUDKNg'/UhEPes'9?I$@Zi'9EQ:>Jk'ACjHTaq'BHS01BM(*,2Mdjp(.6T?GIQ(2Ns'/1f"
    ")-dg7HLT)5=l;=Yl)=L`gnrt*:JO?HLU*>Kq9CG^+0rt;B`g+7`n#+0[+Blt%57H+grt)brt,KP]-:Wf-/Sf$@JZ-1ch"
    "0Smq-3E^6<_e-Kdh*,.R.6@D3KSj/3?W(BH]/9Sp&.6L/CIQ0<KN08BHIWdj0;`r%57L0HNT-9J[0HN^+CHS0KNe3MOp"
    "0Kfj/0DU13LpPRZi1GQk4BT_1IUf.8>H1KOp$@Fc1K^dKNVg268I-CEL3?OWJVos3?Wk0:Lg3?fj*KNc4DVg1?G^4JRk"
    "'ISj5<DLLOUh5=LT07BH6CJp/JWg9AOd038_9EZhKNOg9GKQHPas9SWp*,2<:]ai/S^p;BYb#)+U;J[b[brt;Y[b0;`n"
    "<Bfg9CSg<LXZ'A^p<NmsGQWd>Poq'EKUAEMW4FXZAGMf(2ekAMOSKNPgAMQT,16oBHJT;^`pCEM^.8LmC^dh$cikDRVm"
    "/9ACEShpDHTaFKLo1ISqFKNX?E_jHJai3EGNHNbn%57LHTVi'KOUJacs9AKMKOSj>]imKT_qLTXdKU^d(24BKUhj6<JZ"
    "LTgm3EfjLY`t=JYlMRgmJMOqNbnr=TYl$(-L$L/d$Z7C$jBI&FMf&_?G'-#c'/8m'8*G'@6C(,EK*4Km*L-Q*o/<+BEl"
    "+BTY+T=N,Tgn,q3h-12a-M>B-O&X._:p/G*,/Iag/T/C0LTb0T#)0gkl12?X1d&J2;HJ3B/A3B8n3HTm3V$h46dq4B3O"
    "5l#)6i9M7HQn8m,K9Keo9Q5D9qVq:REf;g=Y<]?K>?RW>Jdf>O.S?O2a?U^_?k/X@W1D@^IpAfB]BH=bBbQhCP2RCh4B"
    "DLMWEQ$2ET&hEXQcFH/AGTYiG^ZoGiXdHJYlHL#)HQ*]HffhIP(qIsehJUToJ]0BKj&8M[HUM^DRNaZhNeIgNl`nOc6^"
    "Ps3SQiVfQj(gQl+ASfFXT[+MTeASTg5WUqQjWa@TWg%`Yl[b";
constexpr char kIq2XxsGaps[] =
    "ACCCCCCGCECCCGGECGCGMICGEOeMMCSkaCGKCGCEMKCGMGCEMOUCKYCSeSGECGMECGCWYY4K=GCGKISMGEOGMSIKwKyG"
    "MEMUqgiO=ECGScaE=EusCGWQICyIwC=QCGSOocU=gYMw=+0CGGECGGIEKCGSScIEYIYIKeGMkQWK8=SCGSEyqEK4gSGE"
    "GCkGYau=G=QCY=KmqKGg88=OGSYeo4ekE=WCu==G===WCGUccMM=A=ICGEOSkgiWUSm=S=Y=KGMGuWo6yUK=Y==0s==S"
    "iWe=K=g====Iw";
constexpr char kIq2XsGaps[] =
    "ACCCCCCCCCCCCECCCCCCCECGCCCECECKCCCCCCCCCCGCCCECGGECGSCCCECGKCGEOIUCCCCCCCECGCCCECCEKCGSCCCE"
    "CGKCGKIcCGOECcYCCCCCCGEGCGGMSICCGScGUSGsEKCCCCCCCECGCCCECGICCGSCCCECGKCGSMCOCCESSkCCCECGKCEC"
    "MGcCGS2MWwCGCQMUWEu=EqCCCCCCCGKCGSSKCGSGQgUiYECGQC2cKgMQ8EGCKWUO6MYMmECUCCCCCCCECGCCCCCCGEGC"
    "GSCCCECGKCGSEQICGCOC2CCCECECKCGSMQCGMGsKIWGuCGSEIIiKUGQg=OCCCECGGECGScCGEOC0eyCCGKISKSIGwGog"
    "WIMQIicKC=uYCGSMIMUC=mOeQO=MSEs=Y0y=AiIiCCCECGICCGSCWCCCCESKGmSkCQGECGCCOSQUeuUmcGQWKCWI=giG"
    "IKECGSOQYUc=KUUEaGG=AmCs=aom8gkCECKIuuGiECEUcSko==QUUKCEwGG2CuCmQ";
constexpr char kIq2SGaps[] =
    "ACCCCCCCCCCCCECCCCCCCECCCCCCCECGEECCCCCCCCECGCCCECCCCECECGCCGCGCCCECGICCCCCEOEEEIICCCCCCCECC"
    "CCCCCCCCCCCCCGCCCCECECGCCCCCCCCCECECCCCCCCECGCCCECGKCCCCEOECECGKCGSCCCECCCCEECCCCCCCCECGEIOC"
    "CGCCCEIECECGKISKCIECKiMCCCCCCCECCECCCECCCCCCCECCEECECGCCCCCCCCCCCCECCCCCCCECGCCCECQCECEGCGEG"
    "CQCGSCCCECCCCECECCCCCCCECGCCCECGKCCCCCCCECGCCCECGKCGSECECGKCGSaCCCCCECEICCCECGKCYCCCECGKCGQW"
    "KGSOoCCCECCCCEECCGCCIGIEOCCGCCGICCGCGKCGSIMECEGYCQECCCCECECGCCCECGKCGSECECGKCGOEcCGSQmEGCQCG"
    "aSCCG6WMcMCUCCCCCCCCCCCECCCCCCCCCCCGCGECECGCCCECCCCCCGCCCCCCCECGCCCECGKCGCCCGGECECGKCYCCCCCC"
    "CCCCCCECCCCCCCECGCCCECGKCCCCCCCECGCCCECGICCGSCCCECGKCGSWGCECCCCECGCCCECGMGSCCCECGKCGSOOCGS2C"
    "CCECCCCCCCECCCCCCCECGCCCECQCCCCCCCECGCCCECGKCGSECECGKCGQCcCCCCCCCECGCCCECGKCGSCCCECGKCGScCGO"
    "E2CCCECGKCGIKcCGS2QqUECCECCCECGECECGMGSCCCECGKCGSQOGSOgIECECGKCGScCGSIQOQ=CQCGoUMa=UsICCCECE"
    "CEGCGCCCEIEGCQCECCCCECGCCCECQCGQCEECCQCGuCCCCCCCEICCCECGKCGSCCCECGKCGSIUCGQC2EGCQCGmICYW0WCM"
    "SICECCCCGGCCCECGKCGSEGCQCGImCGSyECCCECGKCGSOOCGSqEIgQiCGOE0CiE=qSEEEIGCCGmGcWiGMECeECQECGSiO"
    "GQ=m0QyuUcCKCEkU";
constexpr char kIq3XxsGaps[] =
    "ACCFCEBCHJZCECFCHEDCHLMICCFHCHCEKGOEGBCLjTUFLMCEGTQzXUECVOQCFCHCFCCLBYCHHCvCFCHHiGCOJNQLEjoE"
    "STM=NOgCHCFCEDJfCCDCHHbEBICHGBCNBNUHEsEhOYUKb=FCLXcHCHCVNFGCOJLCbCFNVQPS9PTGGMbfSVoVULOCME=N"
    "UPBQGReflLhOV=NDCOyXXIGQXfOgIpdLEjIX=PsOyQCOdgelkG=GhlxoOyCCBSQsKqbFWNOVhQfCS=E";
constexpr char kIq3SGaps[] =
    "ABBDCBBBCCCBEGFCDCCCFCHDDBBBCEBEDDECEHNEFGBECBDDDEDEGDCCCNDIGEDCHCDGECNCEDLECDGGDGPKCMCEFGEC"
    "PFLDCORPHCCMCEFNEUBBCEBCCCBCHDCOCDJGBCDCEFHDGHCOGCKDCBEGGDKDKHDDBDGGBEFRGLCFCNCHECEVHDGHCPnE"
    "DNCbCFCHMERGIBCCCBCCCDCEBCHCCDCNBDCDCGDEDDEDGHYDDKCFHCKEKDECDEJCFCHGOLGJDHDEZDHFJNBLNICFKcEU"
    "ENCLFaHCCCDHCCFCDCKGICCHFCNQKECKGKCMZHEFCEBJCEGOIGFEHRGENHCLFKKNTTgCNCLjEGGEDDHHQKFCCHGFGGEU"
    "CFFEKFPDGMFCFCHEjCSLBZMCKhZRUYFLLGZGEGOEDDMGFCCFHJgGJKFGNXFBPNFMGGDMKMkMTC3gCO3CCMCVQQHdWSGL"
    "FGIMFP1OPODZUVbpC1EDJCMCMGQHLPCcDEGDHRZYDOWEGFYqQgXn";
// clang-format on

constexpr int digit_of(char c) {
    return c >= 'a'   ? c - 'a' + 26
           : c >= 'A' ? c - 'A'
           : c == '+' ? 62
           : c == '/' ? 63
                      : c - '0' + 52;
}

// A grid of these values, whose codes are value + zero.
template <int kWidth, int kCount, int kValues>
constexpr Grid<kWidth, kCount> grid_of(const char* gaps, const int (&values)[kValues], int zero) {
    constexpr int kBits = 16 / kWidth;  // of a field in the planes
    Grid<kWidth, kCount> grid{};
    for (int i = 0; i < 16; ++i) {
        const int place = kWidth == 8 ? i % 4 : i % 8;
        grid.of_place[i] = static_cast<uint8_t>(place < kValues ? values[place] + zero : 0);
    }
    int key = 0, bucket = 0;
    for (int i = 0; i < kCount; ++i) {
        for (; *gaps == '='; ++gaps) key += 64;
        key += digit_of(*gaps++);
        grid.keys[i] = static_cast<uint16_t>(key);
        for (; bucket <= key / kGridBucket; ++bucket) grid.first[bucket] = static_cast<uint16_t>(i);
        for (int j = 0, rest = key; j < kWidth; ++j, rest /= kValues) {
            const int field = rest % kValues, in_plane = j % (kWidth / 2);
            grid.codes[i][j] = static_cast<uint8_t>(values[field] + zero);
            grid.planes[j / (kWidth / 2)][i] |= static_cast<uint8_t>(field << kBits * in_plane);
        }
    }
    for (; bucket < kGridBuckets; ++bucket) grid.first[bucket] = kCount - 1;
    return grid;
}
// The numbers of IQ1's entries (grids.h). `put` comes first: Clang 19 finds a template that constant expressions call only
// where it has read its body before the call.
class Iq1Numbers {
    int16_t index_of[6561]{};  // by key: 1 more than the index of an entry without a number, or 0

    static constexpr uint16_t number(int block, int row, int column) {
        return static_cast<uint16_t>(block / 32 << 9 | column << 7 | block % 32 << 2 | row);
    }
    static constexpr int half_of(char c) { return c - '#' - (c > '\\'); }
    template <int kSide, class Number>
    constexpr void put(const char*& text, Number number_at) {
        for (int row = 0; row < kSide; ++row)
            for (int column = 0; column < kSide; ++column) {
                int16_t& index = index_of[half_of(text[row]) + 81 * half_of(text[kSide + column])];
                of[index - 1] = number_at(row, column);
                index = 0;
            }
        text += 2 * kSide;
    }

  public:
    uint16_t of[2048]{};  // by the index in files

    constexpr explicit Iq1Numbers(const Grid<8, 2048>& file) {
        for (int i = 0; i < 2048; ++i) index_of[file.keys[i]] = static_cast<int16_t>(i + 1);
        const char* text = kIq1Rectangles;
        for (int block = 0; block < 96; ++block)
            put<4>(text, [&](int row, int column) { return number(block, row, column); });
        for (int block = 104; block < 128; ++block)
            for (int both = 0; both < 4; ++both)
                put<2>(text, [&](int row, int column) {
                    return number(block, 2 * row + both % 2, 2 * column + both / 2);
                });
        int key = 0;
        for (int i = 0; i < 128; ++i, ++key) {
            while (index_of[key] == 0) ++key;
            of[index_of[key] - 1] = number(96 + i / 16, i % 4, i / 4 % 4);
        }
    }
};
constexpr Iq1Grid iq1_grid(const Grid<8, 2048>& file) {
    Iq1Grid grid{};
    const Iq1Numbers numbers(file);
    for (int i = 0; i < kGridBuckets; ++i) grid.first[i] = file.first[i];
    for (int i = 0; i < 2048; ++i) {
        const int number = grid.number[i] = numbers.of[i];
        grid.keys[i] = file.keys[i];
        for (int j = 0; j < 8; ++j) grid.codes[number][j] = file.codes[i][j];
        const int kind = number >> 9, places[2] = {number & 127, number >> 2 & 127};
        const bool none = kind == 3 && (number & 0x60) == 0;
        const bool more[2] = {(number >> 7 & 1) != 0, (number & 1) != 0};
        for (int half = 0; half < 2; ++half) {
            const int table = none ? 5 : kind == 3 && more[half] ? 4 : kind;
            const int at = none ? (number & 0x1F) | (number >> 2 & 0x60) : places[half];
            grid.halves[half][table][at] = file.planes[half][i];
        }
    }
    return grid;
}
template <int kBits>
constexpr SignMasks<kBits> sign_masks() {
    SignMasks<kBits> masks{};
    for (unsigned i = 0; i < 1u << kBits; ++i) {
        unsigned signs = i;
        if (kBits == 7)  // an even number of signs is set
            for (int j = 0; j < 7; ++j) signs ^= (i >> j & 1) << 7;
        masks.with_eighth[i] = static_cast<uint8_t>(signs);
        for (int j = 0; j < 8; ++j)
            masks.bytes[i][j] = static_cast<uint8_t>(signs >> j & 1 ? 0x7F : 0);
    }
    return masks;
}

constexpr int kTernary[] = {-8, 0, 8}, kThree[] = {8, 25, 43};
constexpr int kHalves[] = {2, 6, 10, 14, 18, 22, 26, 31}, kOdd[] = {1, 3, 5, 7, 9, 11, 13, 15};

}  // namespace

constexpr Iq1Grid kIq1Grid = iq1_grid(grid_of<8, 2048>(kIq1Gaps, kTernary, 8));
constexpr Grid<8, 256> kIq2XxsGrid = grid_of<8, 256>(kIq2XxsGaps, kThree, 43);
constexpr Grid<8, 512> kIq2XsGrid = grid_of<8, 512>(kIq2XsGaps, kThree, 43);
constexpr Grid<8, 1024> kIq2SGrid = grid_of<8, 1024>(kIq2SGaps, kThree, 43);
constexpr Grid<4, 256> kIq3XxsGrid = grid_of<4, 256>(kIq3XxsGaps, kHalves, 31);
constexpr Grid<4, 512> kIq3SGrid = grid_of<4, 512>(kIq3SGaps, kOdd, 15);
constexpr SignMasks<7> kSigns7 = sign_masks<7>();
constexpr SignMasks<8> kSigns8 = sign_masks<8>();

}  // namespace sterna
